"""Secure aggregation on nodes of this process: what the server gets is the mean of a group, and
only that.
"""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage

from fedmix import BadInput, Exchange, Experiment
from fedmix.core.errors import FedmixError
from fedmix.exchange import Means
from fedmix.flower import client_app, legacy, refusals, secagg
from fedmix.flower.remote import Remote
from tests.flower.nodes import Nodes
from tests.flower.tasks import CLASSES, EVERYONE, SIZES, light, remote, samples, simulated, task

HOW: dict[str, Any] = {"m": "all", "average": 2, "clip": 3.0, "secure": "secagg+"}


def mean_of(client: int) -> torch.Tensor:
    """By hand: samples and their one-hot labels scaled to norm 3 where they are longer, then
    averaged.
    """
    x, y = samples(client, SIZES[client])
    both = np.concatenate([x, np.eye(CLASSES)[y]], axis=1)
    return torch.from_numpy(
        (both * np.minimum(1, 3 / np.linalg.norm(both, axis=1))[:, None]).mean(0)
    )


class Lost:
    """Loses the reply to the first message that says this, whoever gets it."""

    def __init__(self, key: str) -> None:
        self.key, self.done = key, False

    def __call__(self, message: Message, reply: Message) -> Message | None:
        if not self.done and self.key in message.content.config_records.get(RECORD_KEY_CONFIGS, {}):
            self.done = True
            return None
        return reply


def federated(experiment: Experiment, **more: dict[str, Any]) -> tuple[Remote, Nodes]:
    nodes = Nodes(client_app(task(experiment)), [])
    for client in range(len(SIZES)):
        nodes.add(client, **more.get(f"client_{client}", {}))
    return remote(experiment, nodes), nodes


def values(content: RecordDict) -> list[np.ndarray[Any, Any]]:
    """Every array that a message holds."""
    import io

    raw = [
        v
        for record in content.config_records.values()
        for v in record.values()
        if isinstance(v, list)
    ]
    packed = [
        np.load(io.BytesIO(b))
        for each in raw
        for b in each
        if isinstance(b, bytes) and b.startswith(b"\x93NUMPY")
    ]
    return packed + [
        array.numpy() for record in content.array_records.values() for array in record.values()
    ]


def test_the_pool_holds_means_of_groups_and_no_message_a_clients_own() -> None:
    real, nodes = federated(light(exchange=HOW))
    seen: list[Message] = []

    def looked_at(_: Message, reply: Message) -> Message:
        seen.append(reply)
        return reply

    nodes.tamper = dict.fromkeys(range(4), looked_at)
    [first, *_] = real.run(2)
    assert real.exchange is not None
    assert real.exchange.pool is not None
    pool, sent = (
        torch.cat([real.exchange.releases.x, real.exchange.releases.y], 1),  # type: ignore[union-attr]
        real.exchange.sent.tolist(),
    )
    own = torch.stack([mean_of(client) for client in range(4)])
    pairs = [((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 3), (1, 2))]
    step = 2 * 3.0 / 2**22
    assert any(
        all(
            (pool[i] - own[list(pair)].mean(0)).abs().max() < 2 * step for i, pair in enumerate(two)
        )
        for two in pairs
    )
    assert (sent, len(real.exchange.pool)) == ([1, 1, 1, 1], 2)
    assert first.traffic.means_up == 4 * 8 * (6 + 3)
    masked = [v for reply in seen for v in values(reply.content) if v.shape == (6,)]
    assert len(masked) == 4
    for one in masked:  # in the units of the protocol, nothing like a mean: uniform below 2^32
        shifted = (own[:, :6].numpy() + 3) / (6 / 2**22)
        assert (np.abs(one - shifted) > 2**23).any(axis=1).all()


def test_masks_use_every_bit_of_a_key() -> None:
    shape: list[tuple[int, ...]] = [(1000,)]
    one, other = (
        bytes(32),
        b"\x01\0\0\0" * 2 + bytes(24),
    )  # the same in 32 bits, where Flower folds them
    for module in (
        "client.mod.secure_aggregation.secaggplus_mod",
        "server.workflow.secure_aggregation.secaggplus_workflow",
    ):
        import_module("fedmix.flower.secagg_server")
        used: Callable[..., list[Any]] = import_module(f"flwr.{module}").pseudo_rand_gen
        assert (used(one, 2**32, shape)[0] != used(other, 2**32, shape)[0]).any()
        assert (used(one, 2**32, shape)[0] == used(one, 2**32, shape)[0]).all()
    drawn = legacy.masks(one, 2**32, [(100_000,)])[0]
    assert 0 <= drawn.min() < 2**20
    assert 2**32 - 2**20 < drawn.max() < 2**32
    assert abs(drawn.mean() / 2**32 - 0.5) < 5 / np.sqrt(12 * 100_000)


def test_both_sides_make_their_masks_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a sum of two each client makes its own mask and that of the pair, and the server takes two
    off.
    """
    import_module("fedmix.flower.secagg_server")
    called = {}
    for side in (
        "client.mod.secure_aggregation.secaggplus_mod",
        "server.workflow.secure_aggregation.secaggplus_workflow",
    ):
        module = import_module(f"flwr.{side}")
        assert module.__dict__["pseudo_rand_gen"] is legacy.masks
        called[side] = Mock(wraps=legacy.masks)
        monkeypatch.setattr(module, "pseudo_rand_gen", called[side])
    pair = light(exchange=HOW, training=EVERYONE | {"clients_per_round": 2})
    next(remote(pair, Nodes(client_app(task(pair)), range(2)), min_clients=2).run(1))
    assert [mock.call_count for mock in called.values()] == [2 * 2, 2]


@pytest.mark.parametrize(
    "there", [{}, {"pseudo_rand_gen": 3}, {"pseudo_rand_gen": lambda seed, shapes: [seed, shapes]}]
)
def test_a_flower_with_another_function_than_is_replaced_is_refused(
    there: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("flwr.other")
    vars(module).update(there)
    monkeypatch.setitem(sys.modules, "flwr.other", module)
    with pytest.raises(BadInput, match=r"in flwr\.other, and Flower .* has no such function there"):
        legacy.with_masks("flwr.other")
    with pytest.raises(BadInput, match=r"leave exchange\.secure out"):
        legacy.with_masks("flwr.nowhere")


def test_the_older_api_is_imported_for_secure_sums_only() -> None:
    """In a process of its own: who exchanges means in the clear needs none of it."""
    code = """
import sys
from tests.flower.tasks import light, remote
assert "triton" not in sys.modules, "every process that answers a message would import it"
next(remote(light(exchange={"m": 4})).run(1))
assert "fedmix.flower.legacy" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_who_lets_nothing_out_is_left_out_and_asked_once(tmp_path: Any) -> None:
    (tmp_path / "none.toml").write_text("share_means = false\n")
    real, nodes = federated(
        light(exchange=HOW | {"average": 3}), client_2={"policy": str(tmp_path / "none.toml")}
    )
    list(real.run(2))
    assert real.exchange is not None
    assert real.exchange.sent.tolist() == [1, 1, 0, 1]
    assert len(real.exchange.pool or ()) == 1
    assert len(nodes.of_kind("query.sum", 2)) == 1


def test_a_group_that_loses_a_client_gives_no_sum_and_its_others_go_into_another() -> None:
    real, nodes = federated(light(exchange=HOW | {"average": 3}))
    lost: list[Message] = []

    def silent(message: Message, reply: Message) -> Message | None:
        asked = message.content.get(RECORD_KEY_CONFIGS)
        if (
            asked is not None and Key.CIPHERTEXT_LIST in asked and not lost
        ):  # after keys were exchanged
            lost.append(message)
            return None
        return reply

    nodes.tamper[1] = silent
    list(real.run(2))
    assert lost
    assert real.exchange is not None
    assert real.exchange.sent.tolist() == [1, 0, 1, 1]  # alone it has to wait for others to come
    assert len(real.exchange.pool or ()) == 1


def test_a_sum_lost_at_its_last_step_counts_and_its_clients_are_asked_for_no_other() -> None:
    """What takes the masks off has left the others by then, and may only be late."""
    real, nodes = federated(light(exchange=HOW))
    nodes.tamper = dict.fromkeys(range(4), no_shares := Lost(Key.ACTIVE_NODE_ID_LIST))
    list(real.run(2))
    assert real.exchange is not None
    assert no_shares.done
    assert real.exchange.sent.tolist() == real.exchange.ledger.sent.tolist() == [1, 1, 1, 1]
    assert len(real.exchange.pool or ()) == 1
    for client in range(4):
        assert len(nodes.of_kind("query.sum", client)) == 4


def test_a_run_whose_only_sum_was_lost_says_so_and_asks_nobody_again() -> None:
    real, nodes = federated(light(exchange=HOW | {"average": 3}))
    nodes.tamper = dict.fromkeys(range(4), Lost(Key.ACTIVE_NODE_ID_LIST))
    with pytest.raises(FedmixError, match="no client has sent means"):
        list(real.run(1))
    assert real.exchange is not None
    assert real.exchange.ledger.sent.tolist() == [1, 1, 1, 1]
    assert len(nodes.of_kind("query.sum")) == 4 * 4


def test_a_client_with_a_key_that_is_none_does_not_expel_others() -> None:
    """Its group is given up for this attempt, for nobody knows whose fault a refusal is; all of it
    may be asked again.
    """
    real, nodes = federated(light(exchange=HOW))

    def no_key(_: Message, reply: Message) -> Message:
        record = reply.content.get(RECORD_KEY_CONFIGS)
        if isinstance(record, ConfigRecord) and Key.PUBLIC_KEY_2 in record:
            record[Key.PUBLIC_KEY_2] = b"none"
        return reply

    nodes.tamper[0] = no_key
    list(real.run(1))
    assert real.exchange is not None
    sent = real.exchange.sent.tolist()
    assert (sent[0], sum(sent)) == (0, 2)
    assert (real.exchange.settled > 0).tolist() == [
        count > 0 for count in sent
    ]  # who shared its group is not done with


def test_groups_of_a_round_differ_between_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[tuple[int, ...]] = []
    monkeypatch.setattr(
        "fedmix.flower.secagg_server.Group.mean",
        lambda _, nodes, how: groups.append((*nodes, how.average)),
    )
    real, _ = federated(light(exchange=HOW))
    real.settings = replace(real.settings, attempts=3)
    with pytest.raises(FedmixError):
        list(real.run(1))
    assert len(groups) == 3 * 2
    assert len(set(groups)) > 2


@pytest.mark.parametrize(
    "spoilt",
    [
        lambda arrays: arrays[:1],
        lambda arrays: [
            *arrays[:2],
            b"\x93NUMPY\x01\x00v\x00"
            b"{'descr': '<i8', 'fortran_order': False, 'shape': (9999999999,), }",
        ],
        lambda arrays: [*arrays[:2], "text"],
    ],
)
def test_what_cannot_be_summed_is_rejected(spoilt: Callable[[list[Any]], list[Any]]) -> None:
    real, nodes = federated(light(exchange=HOW | {"average": 3}))

    def tamper(_: Message, reply: Message) -> Message:
        record = reply.content.get(RECORD_KEY_CONFIGS)
        if isinstance(record, ConfigRecord) and Key.MASKED_PARAMETERS in record:
            record.__dict__["_data"][Key.MASKED_PARAMETERS] = spoilt(
                list(record[Key.MASKED_PARAMETERS])  # type: ignore[arg-type]
            )
        return reply

    nodes.tamper[3] = tamper
    list(real.run(1))
    assert real.exchange is not None
    assert real.exchange.sent.tolist() == [1, 1, 1, 0]


def asked(stage: str, **settings: Any) -> RecordDict:
    return RecordDict({RECORD_KEY_CONFIGS: ConfigRecord({Key.STAGE: stage, **settings})})


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (asked(Stage.SETUP, **secagg.agreed(Exchange(**HOW), 1)), "other settings"),
        (
            asked(Stage.SETUP, **secagg.agreed(Exchange(**HOW), 2) | {Key.THRESHOLD: 1}),
            "other settings",
        ),
        (
            asked(Stage.SETUP, **secagg.agreed(Exchange(**HOW), 2) | {Key.MOD_RANGE: 2**40}),
            "other settings",
        ),
        (
            asked(Stage.UNMASK, **{Key.ACTIVE_NODE_ID_LIST: [1], Key.DEAD_NODE_ID_LIST: [2]}),
            "without some of its clients",
        ),
        (asked(Stage.SHARE_KEYS), "its app failed"),
        (RecordDict({RECORD_KEY_CONFIGS: ConfigRecord({"stage": 3})}), "its app failed"),
    ],
)
def test_a_client_keeps_to_its_own_settings(content: RecordDict, reason: str) -> None:
    experiment = light(exchange=HOW)
    nodes, context = (
        Nodes(client_app(task(experiment)), []),
        Context(1, 1, {"partition-id": 0}, RecordDict(), {}),
    )
    reply = nodes.app(Message(content, dst_node_id=1, message_type="query.sum"), context)
    assert reason in str(refusals.refused(reply.content))


@pytest.mark.parametrize("kind", ["query.join", "query.means", "query.pool", "train.default"])
def test_a_step_in_a_message_of_another_kind_gets_neither_keys_nor_means(kind: str) -> None:
    """Flower's part of the protocol hands such messages on, as if there were no masks."""
    nodes = Nodes(client_app(task(light(exchange=HOW))), [0])
    [(node, context)] = nodes.contexts.items()
    for content in (
        asked(Stage.SETUP, **secagg.agreed(Exchange(**HOW), 2)),
        *map(asked, [*Stage.all()[1:], "x"]),
    ):
        reply = nodes.app(Message(content, dst_node_id=node, message_type=kind), context)
        assert not reply.content.array_records
        assert RECORD_KEY_CONFIGS not in reply.content


def test_a_mean_is_made_in_the_one_step_that_masks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever Flower does with a step: here it hands everything on."""
    monkeypatch.setattr(
        secagg.client, "secaggplus_mod", lambda message, context, fit: fit(message, context)
    )
    nodes = Nodes(client_app(task(light(exchange=HOW))), [0])
    [(node, context)] = nodes.contexts.items()
    reply = nodes.app(
        Message(asked(Stage.SHARE_KEYS), dst_node_id=node, message_type="query.sum"), context
    )
    assert "outside a sum" in str(refusals.refused(reply.content))


@pytest.mark.parametrize("name", [Key.SOURCE_LIST, Key.ACTIVE_NODE_ID_LIST])
def test_no_client_is_in_a_sum_twice(name: str) -> None:
    """In a group of three the server names one node twice, so would get the sum of two."""
    experiment, refused = light(exchange=HOW | {"average": 3}), list[str]()
    nodes = Nodes(client_app(task(experiment)), range(3))
    deliver = nodes.app

    def app(message: Message, context: Context) -> Message:
        record = message.content.get(RECORD_KEY_CONFIGS)
        if isinstance(record, ConfigRecord) and isinstance(listed := record.get(name), list):
            record[name] = [listed[0], *listed[:-1]]
        reply = deliver(message, context)
        refused.extend(said for said in [refusals.refused(reply.content)] if said)
        return reply

    nodes.app = app  # type: ignore[assignment]
    with pytest.raises(FedmixError):
        next(remote(experiment, nodes, min_clients=3, attempts=1).run(1))
    assert refused == ["a sum was asked for with a client twice"] * 3


def test_a_client_adds_its_mean_once_and_never_sends_it_alone() -> None:
    real, nodes = federated(light(exchange=HOW))
    list(real.run(1))
    for kind, content, reason in (
        ("query.sum", asked(Stage.SETUP, **secagg.agreed(Exchange(**HOW), 2)), "in a sum already"),
        (
            "query.means",
            RecordDict({"about": ConfigRecord({"round": 0, "epoch": 0})}),
            "in sums only",
        ),
    ):
        for node, context in nodes.contexts.items():
            reply = nodes.app(Message(content, dst_node_id=node, message_type=kind), context)
            assert reason in str(refusals.refused(reply.content))


def test_sums_go_on_after_a_checkpoint_without_being_asked_for_again() -> None:
    experiment = light(exchange=HOW)
    (whole, _), (first, nodes) = federated(experiment), federated(experiment)
    list(whole.run(3))
    list(first.run(1))
    again = remote(experiment, nodes)
    again.restore(first.state())
    list(again.run(3))
    assert again.exchange is not None
    assert again.exchange.sent.tolist() == [1, 1, 1, 1]
    for name, weight in whole.params.items():
        torch.testing.assert_close(again.params[name], weight, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"average": 1}, "needs average between 2 and 512"),
        ({"m": 4}, "needs m='all'"),
        ({"clip": None}, "needs clip"),
        ({"exclude_own": True}, "without exclude_own"),
        ({"wait": 0.5}, "nobody sends twice"),
        ({"secure": "secagg"}, "is unknown"),
        ({"secure": ""}, "is unknown"),
        ({"secure": False}, "is unknown"),
    ],
)
def test_settings_that_do_not_go_with_it(more: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        Exchange(**HOW | more)


def test_a_sum_of_more_clients_than_there_are_is_refused_before_anything_is_sent() -> None:
    nodes = Nodes(client_app(task(light(exchange=HOW))), range(4))
    with pytest.raises(BadInput, match="average=5 clients are in a sum, and clients=4"):
        remote(light(exchange=HOW | {"average": 5}), nodes)
    assert not nodes.sent


def test_a_client_whose_data_shrank_before_a_sum_is_accounted_with_what_is_left() -> None:
    """23, 8, 30 and 12 samples answer the roll call; when sums are made the second has 5."""
    real, nodes = federated(light(exchange=HOW, training=EVERYONE))
    nodes.contexts[nodes.node_of(1)].node_config["more"] = -3
    next(real.run(1))
    assert real.exchange is not None
    assert (real.exchange.smallest, real.exchange.ledger.smallest) == (5, 5)


def test_a_mean_at_the_bound_is_not_thrown_away_for_rounding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """0.1 in float32 is 0.100000001; a thousandth more is too much."""
    from fedmix.flower.secagg_server import Group

    at_most = [0.1, 0.1001]

    def mean(group: Group, *_: Any) -> Means:
        group.stage = Stage.UNMASK
        return Means(torch.full((1, 6), at_most.pop(0)), torch.zeros(1, CLASSES))

    monkeypatch.setattr(Group, "mean", mean)
    real, _ = federated(light(exchange=HOW | {"clip": 0.1}))
    list(real.run(1))
    assert real.exchange is not None
    assert real.exchange.releases is not None
    assert real.exchange.releases.x.tolist() == [pytest.approx([0.1] * 6)]


def test_it_is_for_federations_and_samples() -> None:
    with pytest.raises(BadInput, match="here is none"):
        simulated(light(exchange=HOW))
    with pytest.raises(BadInput, match="hidden states"):
        task(light({"name": "fedmix", "lam": 0.1, "layer": 1}, exchange=HOW))
