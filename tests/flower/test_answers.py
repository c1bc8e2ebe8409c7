"""What a client answers to a server that asks as it likes, and what it takes from one."""

from typing import Any, cast

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedmix.exchange import Exchange
from fedmix.flower import client_app, refusals, wire
from tests.flower.nodes import Nodes
from tests.flower.tasks import light, own, start, task


def ask_for_means(
    app: ClientApp,
    client: int,
    context: Context | None = None,
    weights: ArrayRecord | None = None,
    **about: Any,
) -> RecordDict:
    """What a client lets out to a server that asks as it likes."""
    nodes = Nodes(app, [client])
    if context:
        nodes.contexts[nodes.node_of(client)] = context
    asked = RecordDict({"about": ConfigRecord({"epoch": 0, "round": 0, **about})})
    if weights:
        asked["weights"] = weights
    [number] = nodes.push_messages(
        [Message(asked, dst_node_id=nodes.node_of(client), message_type="query.means")]
    )
    return nodes.replies[number].content


def test_a_run_gets_one_answer_for_the_same_data_whatever_it_asks() -> None:
    nodes, real = start(exchange={"m": 4, "noise": 0.3})
    next(real.run(1))
    assert real.exchange is not None
    assert real.exchange.releases is not None
    first = real.exchange.releases.of(0).x
    real.exchange.settled[:] = (
        0  # ask everyone again, with noise that may be less and groups that are others
    )
    real.exchange.how = Exchange(m=4, noise=0.1)
    real.exchange.epoch[:] = 5
    next(real.run(2))
    assert len(nodes.of_kind("query.means", 0)) == 2
    assert torch.equal(real.exchange.releases.of(0).x, first)


def test_data_that_come_back_get_the_answer_they_had() -> None:
    app = client_app(task(light(exchange={"m": 4, "noise": 0.3})))
    context = Context(1, 1, {"partition-id": 0}, RecordDict(), {})
    answers = []
    for more, epoch in ((0, 0), (5, 1), (0, 2)):
        context.node_config["more"] = more
        content = ask_for_means(app, 0, context, epoch=epoch)
        answers.append(cast(ArrayRecord, content["means"])["x"].numpy().tolist())
    assert answers[0] == answers[2] != answers[1]


def test_hidden_states_get_one_answer_a_round_over_the_same_groups() -> None:
    agreed = task(
        light({"name": "fedmix", "lam": 0.1, "layer": 1}, exchange={"m": 4, "noise": 0.0})
    )
    encoder = wire.pack(
        {n: p for n, p in agreed.model(own(0, {})).init().items() if n.startswith("0.")}
    )
    other = wire.pack({n: torch.from_numpy(a.numpy()) * 2 for n, a in encoder.items()})
    context = Context(1, 1, {"partition-id": 0}, RecordDict(), {})

    def ask(weights: ArrayRecord, **about: Any) -> RecordDict:
        return ask_for_means(client_app(agreed), 0, context, weights, **about)

    def values(content: RecordDict) -> Any:
        return cast(ArrayRecord, content["means"])["x"].numpy().tolist()

    first = values(ask(encoder, round=1))
    assert values(ask(other, round=1, epoch=3)) == first  # nothing new in this round
    assert refusals.refused(ask(encoder, round=0)) == refusals.REASONS["over"]
    assert refusals.refused(ask(encoder, round=3)) == refusals.REASONS["round"]
    assert values(ask(encoder, round=2, epoch=9)) == first  # the same weights, and the same groups
    assert len(context.state) == 4  # answers of older rounds are not kept


@pytest.mark.parametrize("exchange", ['{"m": 1, "cutoff": NaN}', '{"m": 1}', '{"clip": 1e9}'])
def test_a_message_changes_nothing_of_what_was_agreed(exchange: str) -> None:
    content = ask_for_means(client_app(task(light(exchange={"m": 10}))), 0, exchange=exchange)
    assert cast(ArrayRecord, content["means"])["x"].shape == (2, 6)  # of 23 samples


def test_without_an_exchange_no_means_are_let_out() -> None:
    content = ask_for_means(client_app(task(light({"name": "fedavg"}))), 0, exchange='{"m": 1}')
    assert refusals.refused(content) == "this app exchanges no means, so none are let out"


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
def test_a_pool_that_cannot_be_drawn_from_is_refused(
    change: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    nodes, real = start(exchange={"m": 4, "exclude_own": True})
    next(real.run(1))
    sent = nodes.of_kind("query.pool", 0)[0]
    for name, values in change.items():
        cast(ArrayRecord, sent.content["pool"])[name] = Array(values)
    context = nodes.contexts[nodes.node_of(0)]
    del context.state["fedmix.pool"]
    reply = client_app(task(light(exchange={"m": 4, "exclude_own": True})))(sent, context)
    assert (
        refusals.refused(reply.content)
        == "what it was sent is not what was agreed; its own log says why"
    )
    assert reason in caplog.records[-1].getMessage()
    assert "fedmix.pool" not in context.state
