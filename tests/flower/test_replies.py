"""Replies that are not what was agreed: rejected, counted, named in the log, and the model is
untouched by them.
"""

import json
import logging
import re
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedmix.exchange import Exchange, Means
from fedmix.flower import client_app, refusals, wire
from fedmix.flower.roster import TooFew
from fedmix.flower.wire import Rejected
from fedmix.training.draws import choose_clients
from tests.flower.lies import UPDATES, about, arrays, weight
from tests.flower.nodes import Nodes
from tests.flower.tasks import light, remote, task


@pytest.mark.parametrize("name", UPDATES)
def test_a_bad_update_is_left_out(name: str, caplog: pytest.LogCaptureFixture) -> None:
    change, reason = UPDATES[name]
    experiment = light()
    nodes = Nodes(client_app(task(experiment)), range(4))
    liar, *others = choose_clients(experiment.seed, 0, 4, 3).tolist()
    kept = {}

    def tamper(asked: Message, reply: Message) -> Message:
        if asked.metadata.message_type == "train":
            kept[nodes.client_of(asked)] = {n: a.numpy() for n, a in arrays(reply.content).items()}
            if nodes.client_of(asked) == liar:
                if name == "client" and liar == 3:
                    about(client=2)(reply.content)
                else:
                    change(reply.content)
        return reply

    nodes.tamper = dict.fromkeys(range(4), tamper)
    real = remote(experiment, nodes)
    with caplog.at_level(logging.WARNING, "fedmix.flower"):
        [done] = real.run(1)
    assert (done.notes["asked"], done.notes["replied"], done.notes["rejected"]) == (3, 2, 1)
    assert f"a reply of client {liar} is rejected" in caplog.text
    if not (name == "client" and liar == 3):
        assert any(re.search(reason, record.getMessage()) for record in caplog.records)
    sizes = {k: real.roster.presence[k].samples for k in others}
    for n, w in real.params.items():
        by_hand = sum(sizes[k] * kept[k][n].astype(np.float64) for k in others) / sum(
            sizes.values()
        )
        np.testing.assert_allclose(w.numpy(), by_hand, rtol=1e-5, atol=1e-6)


def test_no_good_update_fails_the_round_and_leaves_the_model() -> None:
    nodes = Nodes(client_app(task(light())), range(4))

    def spoil(asked: Message, reply: Message) -> Message:
        if asked.metadata.message_type == "train":
            weight(reply.content, lambda w: w * np.nan)
        return reply

    nodes.tamper = dict.fromkeys(range(4), spoil)
    real = remote(light(), nodes, attempts=2)
    before = {n: p.clone() for n, p in real.params.items()}
    with pytest.raises(TooFew, match="0 of 3 clients replied well, and 2 are needed"):
        next(real.run(1))
    assert len(nodes.of_kind("train")) == 2 * 3
    assert all(torch.equal(real.params[n], before[n]) for n in before)
    assert real.round == 0


def reply_with(x: Any, y: Any, m: Any = 4, noise: Any = 0.0) -> RecordDict:
    return RecordDict(
        {
            "about": ConfigRecord({"m": m, "noise": noise}),
            "means": ArrayRecord({"x": Array(x), "y": Array(y)}),
        }
    )


GOOD = np.ones((3, 6), np.float32), np.full((3, 3), 1 / 3, np.float32)
LIKE = Means(torch.zeros(1, 6), torch.zeros(1, 3))


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (reply_with(*GOOD, m=1), "M_k=1 samples, fewer than the 4"),
        (reply_with(*GOOD, m=13), "M_k=13 samples, more than the 12"),
        (reply_with(*GOOD, m="4"), "instead of an int"),
        (
            reply_with(GOOD[0][:2], GOOD[1][:2]),
            "2 means and 2 label vectors; 12 samples with M_k=4 make 3",
        ),
        (reply_with(GOOD[0][:2], GOOD[1]), "2 means and 3 label vectors"),
        (reply_with(np.ones((3, 5), np.float32), GOOD[1]), "have shape"),
        (reply_with(GOOD[0] * np.nan, GOOD[1]), "NaN"),
        (reply_with(GOOD[0], GOOD[1] * 2), "not shares"),
        (reply_with(GOOD[0], GOOD[1] - [[1, 0, -1]]), "are float64"),
        (reply_with(GOOD[0] * 11, GOOD[1]), "hold 11, more than the 10 that is plausible"),
        (reply_with(GOOD[0], GOOD[1] * -33), "hold 11, more than the 10 that is plausible"),
        (reply_with(*GOOD, m=-1), "M_k=-1 samples"),
        (reply_with(*GOOD, noise=0.05), "less noise than the deviation of 0.1"),
    ],
)
def test_means_that_break_what_was_asked_for_are_rejected(reply: RecordDict, reason: str) -> None:
    asked = Exchange(m=4, noise=0.1 if "noise" in reason else 0.0)
    with pytest.raises(Rejected, match=reason):
        wire.read_means(reply, asked, 12, LIKE, (10.0, 10.0), labels="shares" in reason)


def test_good_means_are_read() -> None:
    means = wire.read_means(
        reply_with(*GOOD, m=4), Exchange(m=4), 12, LIKE, (1.0, 1.0), labels=True
    )
    np.testing.assert_array_equal(means.x.numpy(), GOOD[0])


def test_bad_means_stay_out_of_the_pool_and_are_not_asked_for_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    experiment = light(exchange={"m": 4})
    nodes = Nodes(client_app(task(experiment)), range(4))

    def spoil(asked: Message, reply: Message) -> Message:
        if asked.metadata.message_type == "query.means":
            weight(reply.content, lambda x: x[:-1].copy(), "x", "means")
        return reply

    nodes.tamper = {2: spoil}
    real = remote(experiment, nodes)
    with caplog.at_level(logging.WARNING, "fedmix.flower"):
        rounds = list(real.run(2))
    assert (
        "a reply of client 2 is rejected: it sent 6 means and 7 label vectors; 30 samples with "
        "M_k=4 make 7" in caplog.text
    )
    assert rounds[-1].notes["rejected"] == 1
    assert real.exchange is not None
    assert real.exchange.releases is not None
    assert set(real.exchange.releases.owner.tolist()) == {0, 1, 3}
    assert len(nodes.of_kind("query.means", 2)) == 1


def test_means_are_counted_when_they_arrive_good_or_not_and_may_not_be_huge(
    caplog: pytest.LogCaptureFixture,
) -> None:
    experiment = light(exchange={"m": 4, "clip": 2.0, "noise": 1.0})
    nodes = Nodes(client_app(task(experiment)), range(4))

    def spoil(asked: Message, reply: Message) -> Message:
        if asked.metadata.message_type == "query.means":
            weight(reply.content, lambda x: x * 1e6, "x", "means")
        return reply

    nodes.tamper = {2: spoil}
    real = remote(experiment, nodes)
    with caplog.at_level(logging.WARNING, "fedmix.flower"):
        next(real.run(1))
    assert "a reply of client 2 is rejected: its means hold" in caplog.text
    assert real.exchange is not None
    assert real.exchange.releases is not None
    assert set(real.exchange.releases.owner.tolist()) == {0, 1, 3}
    assert real.exchange.sent.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("said", ["a\nb\x1b[31m" + "c" * 1000, 7, ["policy"], b"policy", ""])
def test_a_refusal_is_in_words_of_the_servers_own(said: Any) -> None:
    content = RecordDict({"fedmix": ConfigRecord({"refused": said, "step": "\x1b[31m"})})
    assert refusals.refused(content) == "for no reason that is known here"


def test_a_refusal_tells_what_the_server_needs() -> None:
    assert refusals.refused(refusals.refusal("withheld")) == "its policy lets no means out"
    assert (
        refusals.refused(refusals.refusal("step", step=7))
        == "its local update failed at step 7; its own log says why"
    )
    content = RecordDict({"fedmix": ConfigRecord({"refused": "step", "step": "\x1b[31m"})})
    assert (
        refusals.refused(content) == "its local update failed at step unknown; its own log says why"
    )
    assert (
        refusals.refused(RecordDict({"fedmix": ConfigRecord({"exchange": json.dumps({})})})) is None
    )
