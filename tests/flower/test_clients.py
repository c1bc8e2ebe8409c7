"""Clients that come late, leave, return, change their data, refuse, or claim to be someone else."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedmix.errors import BadInput
from fedmix.exchange import Exchange
from fedmix.flower import client_app, wire
from fedmix.flower.policy import Policy, Withheld
from fedmix.flower.roster import TooFew
from fedmix.flower.server import Remote
from tests.flower.nodes import Nodes
from tests.flower.tasks import SIZES, light, own, remote, samples, simulated, task

EVERYONE = {"clients_per_round": 4, "batch_size": 5}


def owners(real: Remote) -> list[int]:
    """How many means of each client are in the pool."""
    assert real.exchange is not None
    assert real.exchange.releases is not None
    return [int((real.exchange.releases.owner == k).sum()) for k in range(len(SIZES))]


def start(clients: int = 4, exchange: dict[str, Any] | None = None, **config: Any) -> tuple[Nodes, Remote]:
    experiment = light(exchange=exchange or {"m": 4}, training=EVERYONE, rounds=9)
    nodes = Nodes(client_app(task(experiment)), range(clients), **config)
    return nodes, remote(experiment, nodes, min_clients=clients)


def test_a_client_that_joins_late_adds_its_means_and_everyone_gets_the_new_pool_once() -> None:
    nodes, real = start(3)
    first = next(real.run(1))
    assert (first.notes["asked"], first.notes["pool_version"]) == (3, 1)
    nodes.add(3)
    *_, third = real.run(3)
    assert (third.notes["asked"], third.notes["pool_version"]) == (4, 2)
    assert owners(real) == [n // 4 for n in SIZES]
    assert ["pool" in m.content for m in nodes.of_kind("train", 0)] == [True, True, False]
    assert ["pool" in m.content for m in nodes.of_kind("train", 3)] == [True, False]
    assert len(nodes.of_kind("query.means", 0)) == 1


def test_a_client_whose_data_changed_sends_new_means_and_others_get_the_pool_once(caplog: pytest.LogCaptureFixture) -> None:
    nodes, real = start()
    next(real.run(1))
    nodes.contexts[nodes.node_of(1)].node_config["more"] = 12
    with caplog.at_level(logging.INFO, "fedmix.flower"):
        second = next(real.run(2))
        *_, last = real.run(4)
    assert "the data of client 1 changed" in caplog.text
    assert second.notes["pool_version"] == 1  # it said so in its update of this round
    assert last.notes["pool_version"] == 2
    assert owners(real)[1] == (SIZES[1] + 12) // 4
    assert len(nodes.of_kind("query.means", 1)) == 2
    assert len(nodes.of_kind("query.means", 0)) == 1
    assert ["pool" in m.content for m in nodes.of_kind("train", 0)] == [True, False, True, False]


def test_a_node_that_comes_back_gets_the_pool_again_and_sends_no_means_again() -> None:
    nodes, real = start()
    next(real.run(1))
    del nodes.contexts[nodes.node_of(2)]
    second = next(real.run(2))
    assert (second.notes["asked"], second.notes["clients"], second.notes["pool_version"]) == (3, 3, 1)
    nodes.sent.clear()
    nodes.add(2)
    third = next(real.run(3))
    assert (third.notes["asked"], third.notes["replied"], third.notes["pool_version"]) == (4, 4, 1)
    assert not nodes.of_kind("query.means")
    assert ["pool" in m.content for m in nodes.of_kind("train", 2)] == [True]
    assert owners(real) == [n // 4 for n in SIZES]


def test_a_second_node_with_a_clients_number_has_to_wait(caplog: pytest.LogCaptureFixture) -> None:
    nodes, real = start()
    first = nodes.node_of(1)
    nodes.add(1)
    with caplog.at_level(logging.WARNING, "fedmix.flower"):
        next(real.run(1))
    assert f"says that it is client 1, which node {first} is" in caplog.text
    assert real.roster.node[1] == first
    del nodes.contexts[first]
    next(real.run(2))
    assert real.roster.node[1] == nodes.node_of(1) != first


@pytest.mark.parametrize("number", [7, -1, "one", None, 2.0])
def test_a_node_without_a_clients_number_is_not_let_in(number: Any, caplog: pytest.LogCaptureFixture) -> None:
    nodes, real = start()
    stranger = nodes.add(number)
    with caplog.at_level(logging.WARNING, "fedmix.flower"):
        *_, last = real.run(5)
    assert "partition-id" in caplog.text
    assert last.notes["clients"] == 4
    asked = [m for m in nodes.of_kind("query.join") if m.metadata.dst_node_id == stranger]
    assert len(asked) == 3  # then it is left alone


def test_a_node_that_was_away_is_asked_again_who_it_is() -> None:
    """With keys a node keeps its number when it is restarted."""
    nodes, real = start(3)
    node = nodes.add(3)
    nodes.contexts[node].node_config["partition-id"] = "three"
    list(real.run(4))
    context = nodes.contexts.pop(node)
    list(real.run(5))
    context.node_config["partition-id"] = 3
    nodes.contexts[node] = context
    *_, last = real.run(6)
    assert last.notes["clients"] == 4


def test_too_few_clients_fail_with_a_sentence() -> None:
    experiment = light()
    nodes = Nodes(client_app(task(experiment)), range(2))
    with pytest.raises(TooFew, match=r"0 of 4 clients came within 0.1 s; start the others, or lower min-clients"):
        remote(experiment, nodes, join_timeout=0.1)


def test_for_a_chosen_client_that_is_away_another_takes_part() -> None:
    experiment = light(exchange={"m": 4})
    nodes = Nodes(client_app(task(experiment)), [0, 1, 2])
    real = remote(experiment, nodes, min_clients=3)
    rounds = list(real.run(3))
    assert [r.notes["asked"] for r in rounds] == [3, 3, 3]


def test_a_reply_that_never_comes_does_not_stop_the_round() -> None:
    nodes, real = start()
    nodes.tamper = {3: lambda asked, reply: None if asked.metadata.message_type == "train" else reply}
    real.settings = real.settings.__class__(**{**vars(real.settings), "timeout": 0.1})
    done = next(real.run(1))
    assert (done.notes["asked"], done.notes["replied"]) == (4, 3)


# The policy of a client


def test_a_policy_asks_for_larger_groups_and_more_noise(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("least_m = 10\nleast_noise = 0.5\n")
    real = start(policy=str(policy))[1]
    next(real.run(1))
    assert owners(real) == [2, 0, 3, 1]  # of 23, 8, 30 and 12 samples in groups of 10; 8 are too few
    assert real.exchange is not None
    assert real.exchange.releases is not None
    mean = real.exchange.releases.of(3).x[0]
    plain = torch.from_numpy(samples(3, SIZES[3])[0]).mean(0)
    assert 0.05 < float((mean - plain).std()) < 2  # six values of noise 0.5
    again = start(policy=str(policy))[1]
    next(again.run(1))
    assert again.exchange is not None
    assert again.exchange.releases is not None
    assert not torch.equal(again.exchange.releases.of(3).x[0], mean)  # the seed, which the server knows, does not give it


def test_a_run_gets_one_answer_for_the_same_data_whatever_it_asks() -> None:
    nodes, real = start(exchange={"m": 4, "noise": 0.3})
    next(real.run(1))
    assert real.exchange is not None
    assert real.exchange.releases is not None
    first = real.exchange.releases.of(0).x
    real.settled[:] = 0  # ask everyone again, with noise that may be less and groups that are others
    real.exchange.how = Exchange(m=4, noise=0.1)
    real.exchange.epoch[:] = 5
    next(real.run(2))
    assert len(nodes.of_kind("query.means", 0)) == 2
    assert torch.equal(real.exchange.releases.of(0).x, first)


def ask_for_means(
    app: ClientApp, client: int, context: Context | None = None, weights: ArrayRecord | None = None, **about: Any
) -> RecordDict:
    """What a client lets out to a server that asks as it likes."""
    nodes = Nodes(app, [client])
    if context:
        nodes.contexts[nodes.node_of(client)] = context
    asked = RecordDict({"about": ConfigRecord({"epoch": 0, "round": 0, **about})})
    if weights:
        asked["weights"] = weights
    [number] = nodes.push_messages([Message(asked, dst_node_id=nodes.node_of(client), message_type="query.means")])
    return nodes.replies[number].content


@pytest.mark.parametrize("exchange", ['{"m": 1, "cutoff": NaN}', '{"m": 1}', '{"clip": 1e9}'])
def test_a_message_changes_nothing_of_what_was_agreed(exchange: str) -> None:
    content = ask_for_means(client_app(task(light(exchange={"m": 10}))), 0, exchange=exchange)
    assert cast(ArrayRecord, content["means"])["x"].shape == (2, 6)  # of 23 samples


def test_without_an_exchange_no_means_are_let_out() -> None:
    content = ask_for_means(client_app(task(light({"name": "fedavg"}))), 0, exchange='{"m": 1}')
    assert wire.refused(content) == "this objective uses no means, so none are let out"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"x": np.full((17, 6), np.nan, np.float32)}, "'x' hold NaN"),
        ({"x": np.ones((17, 5), np.float32)}, "'x' have shape (17, 5) instead of (any, 6)"),
        ({"y": np.ones((16, 3), np.float32)}, "its pool has 17 means and 16 label vectors"),
        ({"entries": np.array([0, 17])}, "its entries are none, or not of a pool of 17"),
        ({"entries": np.array([-1])}, "its entries are none, or not of a pool of 17"),
        ({"entries": np.array([], np.int64)}, "its entries are none, or not of a pool of 17"),
        ({"entries": np.array([0.5])}, "'entries' are float64 instead of int64"),
        ({"z": np.array([0])}, "hold 'z'"),
    ],
)
def test_a_pool_that_cannot_be_drawn_from_is_refused(change: dict[str, Any], reason: str) -> None:
    nodes, real = start(exchange={"m": 4, "exclude_own": True})
    next(real.run(1))
    sent = nodes.of_kind("train", 0)[0]
    for name, values in change.items():
        cast(ArrayRecord, sent.content["pool"])[name] = Array(values)
    context = nodes.contexts[nodes.node_of(0)]
    del context.state["pool"]
    reply = client_app(task(light(exchange={"m": 4, "exclude_own": True})))(sent, context)
    assert reason in str(wire.refused(reply.content))
    assert "pool" not in context.state


def test_hidden_states_get_one_answer_a_round_over_the_same_groups() -> None:
    agreed = task(light({"name": "fedmix", "lam": 0.1, "layer": 1}, exchange={"m": 4, "noise": 0.0}))
    encoder = wire.pack({n: p for n, p in agreed.model(own(0, {})).init().items() if n.startswith("0.")})
    other = wire.pack({n: torch.from_numpy(a.numpy()) * 2 for n, a in encoder.items()})
    context = Context(1, 1, {"partition-id": 0}, RecordDict(), {})

    def ask(weights: ArrayRecord, **about: Any) -> RecordDict:
        return ask_for_means(client_app(agreed), 0, context, weights, **about)

    def values(content: RecordDict) -> Any:
        return cast(ArrayRecord, content["means"])["x"].numpy().tolist()

    first = values(ask(encoder, round=1))
    assert values(ask(other, round=1, epoch=3)) == first  # nothing new in this round
    assert wire.refused(ask(encoder, round=0)) == "means were asked for round 0, after those of round 1 were let out"
    assert "there are rounds 0..2" in str(wire.refused(ask(encoder, round=3)))
    assert values(ask(encoder, round=2, epoch=9)) == first  # the same weights, and the same groups
    assert len(context.state) == 4  # answers of older rounds are not kept


def test_data_that_come_back_get_the_answer_they_had() -> None:
    app = client_app(task(light(exchange={"m": 4, "noise": 0.3})))
    context = Context(1, 1, {"partition-id": 0}, RecordDict(), {})
    answers = []
    for more, epoch in ((0, 0), (5, 1), (0, 2)):
        context.node_config["more"] = more
        content = ask_for_means(app, 0, context, epoch=epoch)
        answers.append(cast(ArrayRecord, content["means"])["x"].numpy().tolist())
    assert answers[0] == answers[2] != answers[1]


@pytest.mark.parametrize("name", ["cutoff", "average", "noise", "wait", "clip", "m"])
def test_nan_is_no_setting_of_an_exchange(name: str) -> None:
    with pytest.raises(BadInput, match=f"exchange.{name}=nan"):
        replace(Exchange(), **{name: cast(Any, float("nan"))})


def test_a_client_that_refuses_by_policy_still_trains(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("share_means = false")
    nodes, real = start(3)
    nodes.add(3, policy=str(policy))
    with caplog.at_level(logging.WARNING, "fedmix.flower"):
        *_, last = real.run(2)
    assert "client 3 refuses: the policy of client 3 lets no means out" in caplog.text
    assert owners(real) == [*(n // 4 for n in SIZES[:3]), 0]
    assert (last.notes["asked"], last.notes["replied"], last.notes["rejected"]) == (4, 4, 0)
    assert len(nodes.of_kind("query.means", 3)) == 1


def test_without_anyones_means_the_run_fails(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("share_means = false")
    with pytest.raises(TooFew, match="no client has sent means"):
        next(start(policy=str(policy))[1].run(1))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("least_m = 0", "least_m=0 must be a whole number from 1 on"),
        ("least_m = 2.5", "least_m=2.5 must be a whole number"),
        ("least_m = true", "least_m=True must be a whole number"),
        ("least_noise = -1", "least_noise=-1 must be a number from 0 on"),
        ("least_noise = nan", "least_noise=nan must be a number"),
        ("least_noise = inf", "least_noise=inf must be a number"),
        ("least_m = " + "9" * 5000, "is not valid TOML: "),
        ("most_clip = 0", "most_clip=0 must be a number above 0"),
        ("most_clip = inf", "most_clip=inf must be a number above 0"),
        ("share_means = 1", "share_means=1 must be true or false"),
        ("refuse = true", "'refuse' is not a setting of a policy; known are share_means, least_m, least_noise, most_clip"),
        ("least_m = ", "is not valid TOML"),
        ("a = " + "[" * 40000, "is not valid TOML"),
        ("#" * 100000, "is larger than"),
    ],
)
def test_a_bad_policy_is_refused_in_one_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(BadInput, match=sentence) as told:
        Policy.load(path)
    assert len(str(told.value)) < 400


def test_a_policy_never_weakens_what_was_asked_for() -> None:
    asked = Exchange(m=20, noise=0.4)
    assert Policy(least_m=5, least_noise=0.1).applied(asked, 0, 50) == asked
    assert Policy(least_m=30).applied(Exchange(m=0.5), 0, 50) == Exchange(m=30)
    assert Policy(least_m=30).applied(Exchange(m="all"), 0, 50) == Exchange(m="all")
    with pytest.raises(Withheld, match="fewer samples than the 60"):
        Policy(least_m=60).applied(Exchange(m="all"), 0, 50)


def test_a_policy_clips_and_so_puts_noise_on_labels() -> None:
    policy = Policy(least_noise=0.2, most_clip=3.0)
    assert policy.applied(Exchange(m=4), 0, 50).noises == (0.2, 0.2)
    assert [policy.applied(Exchange(m=4, clip=c), 0, 50).clip for c in (None, 2.0, 5.0)] == [3.0, 2.0, 3.0]
    both = policy.applied(Exchange(m=4, noise=1.0, clip=5.0, label_clip=4.0, label_noise=0.1), 0, 50)
    assert (both.clip, both.label_clip, both.noises) == (3.0, 3.0, (1.0, 0.2))


def test_means_that_a_policy_clipped_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text("most_clip = 0.5\nleast_noise = 0.01\n")
    real = start(policy=str(path))[1]
    done = next(real.run(1))
    assert (owners(real), done.notes["rejected"]) == ([n // 4 for n in SIZES], 0)
    assert real.exchange is not None
    assert real.exchange.releases is not None
    assert float(real.exchange.releases.x.norm(dim=1).max()) < 0.5 + 10 * 0.01


def test_without_a_policy_the_pool_is_the_simulations() -> None:
    real = start()[1]
    reference = simulated(light(exchange={"m": 4}, training=EVERYONE))
    next(real.run(1))
    next(reference.run(1))
    assert real.exchange is not None
    assert reference.exchange is not None
    assert real.exchange.pool is not None
    assert reference.exchange.pool is not None
    torch.testing.assert_close(real.exchange.pool.x, reference.exchange.pool.x)
