"""What has left clients stays counted: in rounds that fail, in runs that are stopped, and in those
that go on later.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Error, Message

from fedmix import BadInput
from fedmix.exchange import Exchange
from fedmix.flower import client_app
from fedmix.flower.ledger import Ledger
from fedmix.flower.roster import TooFew
from fedmix.flower.server import folder_of, serve
from fedmix.privacy import guarantee
from tests.flower.lies import about
from tests.flower.nodes import Nodes
from tests.flower.tasks import light, remote, task

PRIVATE: dict[str, Any] = {"m": 4, "clip": 2.0, "noise": 1.0}


class Killed(BaseException):
    pass


def killed_when_means_come(asked: Message, reply: Message) -> Message:
    if asked.metadata.message_type == "query.means":
        raise Killed
    return reply


def no_update(asked: Message, reply: Message) -> Message | None:
    return None if asked.metadata.message_type == "train" else reply


def test_a_round_that_fails_does_not_take_back_what_was_released() -> None:
    nodes = Nodes(client_app(task(light(exchange=PRIVATE))), range(4))
    nodes.tamper = dict.fromkeys(range(4), no_update)
    real = remote(light(exchange=PRIVATE), nodes, attempts=1, timeout=0.1)
    with pytest.raises(TooFew):
        next(real.run(1))
    assert real.exchange is not None
    assert (real.exchange.version, real.exchange.sent.tolist(), real.exchange.smallest) == (
        0,
        [1, 1, 1, 1],
        4,
    )


@pytest.mark.parametrize("tamper", [killed_when_means_come, no_update])
def test_a_later_run_counts_what_left_in_the_one_before(tamper: Any, tmp_path: Path) -> None:
    """Its nodes know nothing of the first run and draw other noise: everyone has released twice."""
    agreed = task(light(exchange=PRIVATE))
    config = {
        "clients": 4,
        "out": str(tmp_path),
        "timeout": 0.1,
        "join-timeout": 1.0,
        "attempts": 1,
    }
    first = Nodes(client_app(agreed), range(4))
    first.tamper = dict.fromkeys(range(4), tamper)
    with pytest.raises((Killed, TooFew)):
        serve(first, agreed, config)
    assert json.loads((folder_of(agreed, tmp_path) / "releases.json").read_text()) == {
        "sent": [1, 1, 1, 1],
        "smallest": 4,
    }
    summary = serve(Nodes(client_app(agreed), range(4)), agreed, config)
    assert summary["releases"] == 2
    assert summary["epsilon"] == guarantee(Exchange(**PRIVATE), 4, releases=2).epsilon


def test_who_lets_nothing_out_is_not_counted(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("share_means = false")
    nodes = Nodes(client_app(task(light(exchange=PRIVATE))), range(3))
    nodes.add(3, policy=str(policy))
    real = remote(light(exchange=PRIVATE), nodes)
    next(real.run(1))
    assert real.exchange is not None
    assert real.exchange.ledger.sent.tolist() == [1, 1, 1, 0]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "is damaged; it counts what has left the clients: restore it"),
        ("[1]", "is damaged"),
        ('{"sent": 3, "smallest": 1}', "is damaged"),
        ('{"sent": [1, -1], "smallest": 1}', "is damaged"),
        ('{"sent": [1, 1.5], "smallest": 1}', "is damaged"),
        ('{"sent": [1, 18446744073709551615], "smallest": 1}', "is damaged"),
        ('{"sent": [1, 1], "smallest": null}', "is damaged"),
        ('{"sent": [1, 1, 1], "smallest": 4}', "is of 3 clients, and clients=2"),
    ],
)
def test_a_damaged_ledger_is_refused_in_one_sentence(
    content: str, sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "releases.json"
    path.write_text(content)
    with pytest.raises(BadInput, match=sentence):
        Ledger(2, path)


def test_a_link_in_the_place_of_the_ledger_or_the_log_is_refused(tmp_path: Path) -> None:
    """A folder from elsewhere must not name files outside it, be they there or not."""
    agreed, outside = task(light(exchange=PRIVATE)), tmp_path / "outside"
    for name in ("releases.json", "federation.log"):
        folder = folder_of(agreed, tmp_path / name)
        folder.mkdir(parents=True)
        (folder / name).symlink_to(outside)
        with pytest.raises(BadInput, match=f"{name} is a link to a file elsewhere"):
            serve(
                Nodes(client_app(agreed), range(4)),
                agreed,
                {"clients": 4, "out": str(tmp_path / name)},
            )
        assert not outside.exists()


def unavailable(asked: Message, reply: Message) -> Message:
    return (
        Message(Error(5, "node unavailable"), reply_to=asked)
        if asked.metadata.message_type == "query.means"
        else reply
    )


def saying(**lies: Any) -> Any:
    """Means with something else said about them."""

    def tamper(asked: Message, reply: Message) -> Message:
        if asked.metadata.message_type == "query.means":
            about(**lies)(reply.content)
        return reply

    return tamper


@pytest.mark.parametrize(
    "tamper", [unavailable, saying(m=10**6), saying(client=0), saying(samples=-1), saying(m=0)]
)
def test_means_that_left_a_client_and_cannot_be_used_are_counted(tamper: Any) -> None:
    nodes = Nodes(client_app(task(light(exchange=PRIVATE))), range(4))
    nodes.tamper[3] = tamper
    real = remote(light(exchange=PRIVATE), nodes)
    next(real.run(1))
    assert real.exchange is not None
    assert real.exchange.ledger.sent.tolist() == [1, 1, 1, 1]
    assert real.exchange.ledger.smallest == 4
