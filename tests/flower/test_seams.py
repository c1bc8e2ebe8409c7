"""Clients that keep something, label counts and server steps on Flower, as on one machine."""

from copy import deepcopy
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Message, RecordDict

from fedmix import Experiment, FedMix, Objective, Supervised
from fedmix.flower import Task, client_app
from fedmix.flower.remote import Remote
from fedmix.flower.settings import Settings
from fedmix.objectives.fedlc import FedLC
from fedmix.objectives.fedrs import FedRS
from fedmix.objectives.scaffold import Scaffold
from fedmix.training.federation import Federation
from tests.flower.lies import weight
from tests.flower.nodes import Nodes
from tests.flower.tasks import SIZES, light, simulated, task

ALL = {"clients_per_round": 4, "epochs": 2, "batch_size": 5, "lr": 0.05, "momentum": 0.5}


def both(objective: Objective, **changes: Any) -> tuple[Nodes, Remote, Federation]:
    """The nodes, their federation, and the same on one machine."""
    experiment: Experiment = light({"name": "fedavg"}, **changes)
    agreed: Task = replace(task(experiment), objective=objective)
    nodes = Nodes(client_app(agreed), range(len(SIZES)))
    settings = Settings(clients=len(SIZES), join_timeout=1.0, timeout=1.0)
    real = Remote(nodes, agreed, settings, {})
    reference = simulated(experiment, objective=objective)
    return nodes, real, with_server(reference, experiment)


def with_server(run: Federation, experiment: Experiment) -> Federation:
    """The same with the server step of an experiment."""
    return Federation(
        run.model.module,
        run.data,
        run.objective,
        run.training,
        exchange=run.exchange.how if run.exchange else None,
        engine=run.engine,
        server=experiment.build_server(),
        seed=run.seed,
    )


def kept(nodes: Nodes, client: int, which: str = "kept") -> dict[str, torch.Tensor]:
    record = cast(ArrayRecord, nodes.contexts[nodes.node_of(client)].state[which])
    return {name: torch.from_numpy(array.numpy()) for name, array in record.items()}


@pytest.mark.parametrize(
    ("objective", "changes"),
    [
        (Supervised() + Scaffold(), {}),
        (FedMix(0.1) + Scaffold(), {}),
        (FedLC(tau=0.5), {}),
        (FedRS(), {}),
        (Supervised(), {"server": {"name": "fedadam", "lr": 0.05, "tau": 0.01}}),
        (FedMix(0.1), {"server": {"name": "fedavgm", "momentum": 0.5}}),
        (FedLC() + Scaffold(), {"server": {"name": "fedyogi", "lr": 0.05, "tau": 0.01}}),
    ],
    ids=["scaffold", "fedmix+scaffold", "fedlc", "fedrs", "fedadam", "fedavgm", "all"],
)
def test_weights_and_bytes_are_those_of_the_simulation(
    objective: Objective, changes: dict[str, Any]
) -> None:
    """Three of four clients in each of three rounds, with momentum."""
    nodes, real, reference = both(objective, **changes)
    start = {n: p.clone() for n, p in reference.params.items()}
    for ours, theirs in zip(real.run(3), reference.run(3), strict=True):
        assert ours.traffic == theirs.traffic
        assert ours.local_loss == pytest.approx(theirs.local_loss, rel=1e-5)
    assert any(float((p - start[n]).abs().max()) > 1e-2 for n, p in reference.params.items())
    torch.testing.assert_close(real.params, reference.params, rtol=0, atol=1e-5)
    torch.testing.assert_close(real.server_state, reference.server_state, rtol=0, atol=1e-5)
    if reference.memory:
        assert real.memory is not None
        torch.testing.assert_close(real.memory.shared, reference.memory.shared, rtol=0, atol=1e-5)
        for client, mine in reference.memory.kept.items():
            torch.testing.assert_close(kept(nodes, client), mine, rtol=0, atol=1e-5)
        assert real.memory.kept == {}  # which clients keep, and not the server


def test_nothing_is_kept_or_sent_where_nobody_asks() -> None:
    nodes, real, _ = both(Supervised())
    list(real.run(2))
    assert not [m for m in nodes.of_kind("train") if "shared" in m.content]
    for context in nodes.contexts.values():
        assert not [name for name in context.state if name.startswith("kept")]


def test_a_round_that_is_asked_for_twice_moves_a_client_once() -> None:
    """As when a reply was lost: the same question has the same answer, and the same is kept."""
    nodes, real, _ = both(Supervised() + Scaffold(), training=ALL)
    list(real.run(2))
    [*_, last] = nodes.of_kind("train", 1)
    context = nodes.contexts[nodes.node_of(1)]
    once, before = kept(nodes, 1), kept(nodes, 1, "kept before")
    assert not torch.equal(once["1.weight"], before["1.weight"])
    replies: list[RecordDict] = []
    for _ in range(2):
        asked = deepcopy(last)
        reply: Message = nodes.app(asked, context)
        replies.append(reply.content)
        for name, tensor in kept(nodes, 1).items():
            assert torch.equal(tensor, once[name])
    one, other = (cast(ArrayRecord, reply["sent"]) for reply in replies)
    for name in one:
        np.testing.assert_array_equal(one[name].numpy(), other[name].numpy())


def test_a_lost_reply_and_another_attempt_end_as_if_nothing_was_lost() -> None:
    """All replies to the second round's first attempt get lost; all are asked once more."""
    objective = Supervised() + Scaffold()
    nodes, real, reference = both(objective, training=ALL)
    next(real.run(1))
    lost: list[int] = []

    def lose(asked: Message, reply: Message) -> Message | None:
        if asked.metadata.message_type == "train" and len(lost) < len(SIZES):
            lost.append(nodes.client_of(asked))
            return None
        return reply

    nodes.tamper = dict.fromkeys(range(len(SIZES)), lose)
    list(real.run(3))
    list(reference.run(3))
    assert sorted(lost) == [0, 1, 2, 3]
    torch.testing.assert_close(real.params, reference.params, rtol=0, atol=1e-5)
    assert real.memory is not None
    assert reference.memory is not None
    torch.testing.assert_close(real.memory.shared, reference.memory.shared, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "change",
    [
        lambda c: weight(c, lambda w: w * np.nan, part="sent"),
        lambda c: weight(c, lambda w: w + np.inf, part="sent"),
        lambda c: weight(c, lambda w: w.T.copy(), part="sent"),
        lambda c: weight(c, lambda w: w.astype(np.float64), part="sent"),
        lambda c: c["sent"].pop("1.weight"),
        lambda c: c.pop("sent"),
    ],
    ids=["nan", "infinity", "shape", "float64", "lacks one", "missing"],
)
def test_what_is_no_good_is_rejected(change: Any) -> None:
    """Of four clients one lies, and the round is that of the other three."""
    nodes, real, _ = both(Supervised() + Scaffold(), training=ALL)
    before = {} if real.memory is None else dict(real.memory.shared)

    def lie(asked: Message, reply: Message) -> Message:
        if asked.metadata.message_type == "train":
            change(reply.content)
        return reply

    nodes.tamper[2] = lie
    done = next(real.run(1))
    assert (done.notes["replied"], done.notes["rejected"]) == (3, 1)
    assert real.memory is not None
    others = sum(sent(nodes, k)["1.weight"] for k in (0, 1, 3)) / len(SIZES)
    torch.testing.assert_close(real.memory.shared["1.weight"] - before["1.weight"], others)


def sent(nodes: Nodes, client: int) -> dict[str, torch.Tensor]:
    """In the first round c and c_k are zero, so that what a client sends is what it keeps."""
    return kept(nodes, client)


def test_a_client_forgets_what_it_kept_of_an_update_that_was_rejected() -> None:
    """Its first update is no good, so that in the second round it begins with zeros again."""
    nodes, real, _ = both(Supervised() + Scaffold(), training=ALL)

    def lie_once(asked: Message, reply: Message) -> Message:
        if asked.metadata.message_type == "train" and not real.round:
            weight(reply.content, lambda w: w * np.nan)
        return reply

    nodes.tamper[2] = lie_once
    first, second = real.run(2)
    assert (first.notes["rejected"], second.notes["rejected"]) == (1, 1)
    for client in range(len(SIZES)):
        before = kept(nodes, client, "kept before")["1.weight"]
        assert bool(before.any()) == (client != 2)
