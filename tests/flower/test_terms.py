"""What server and clients must have in common is compared in the roll call, before means leave."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import flwr
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

import fedmix
from fedmix.data import alone
from fedmix.exchange import Exchange
from fedmix.flower import client_app, terms
from fedmix.flower.roster import TooFew
from fedmix.flower.terms import Terms, experiment_id
from fedmix.flower.wire import Rejected
from tests.flower.nodes import Nodes
from tests.flower.tasks import EVERYONE, TEST, light, remote, task

OURS = Terms.of(alone(*TEST, classes=3), Exchange(m=4), "one")


def test_terms_are_properties_of_software_and_task() -> None:
    assert OURS.fedmix == fedmix.__version__
    assert OURS.flower == flwr.__version__
    assert (OURS.shape, OURS.outputs, OURS.classes) == ("(6,)", 3, True)
    other = alone(TEST[0][:7] * 2, TEST[1][:7], classes=3)  # other samples of the same kind
    assert Terms.of(other, Exchange(m=4), "one") == OURS
    assert Terms.read(RecordDict({"terms": OURS.content()})) == OURS


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"fedmix": "0.0.9"}, "it has fedmix 0.0.9, and the server "),
        ({"code": "0" * 16}, "is other code than the server's; install the same on both"),
        (
            {"experiment": "0" * 16},
            "its experiment or exchange is 0000000000000000, and the server",
        ),
        ({"shape": "(5,)"}, r"its samples have shape \(5,\), and the server's \(6,\)"),
        ({"outputs": 4}, "its labels are 4 classes, and the server's 3 classes"),
        ({"classes": False}, "its labels are 3 regression targets, and the server's 3 classes"),
    ],
)
def test_a_difference_is_told_in_a_sentence(change: dict[str, Any], told: str) -> None:
    with pytest.raises(Rejected, match=told):
        OURS.check(OURS._replace(**change))


def test_code_that_trains_is_told_from_other_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An app of one's own trains by fedmix.functional, which reports do not touch."""

    def code_with(room: str) -> str:
        (tmp_path / room).mkdir()
        (tmp_path / room / "some.py").write_text(f"{room} = 1")
        terms.code.cache_clear()
        return terms.code()

    monkeypatch.setattr(fedmix, "__file__", str(tmp_path / "__init__.py"))
    try:
        first, *others = [code_with(room) for room in ("core", "report", "functional", "flower")]
    finally:
        terms.code.cache_clear()
    assert others[0] == first
    assert len({first, *others}) == 3


def test_flowers_version_may_differ() -> None:
    OURS.check(OURS._replace(flower="1.40.0"))


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("fedmix", "\x1b[31m", "its fedmix is no plain word"),
        ("flower", "a" * 1000, "its flower is no plain word"),
        ("shape", "", "its shape is no plain word"),
        ("outputs", "3", "its outputs is '3' instead of an int"),
        ("classes", 1, "its classes is 1 instead of a bool"),
    ],
)
def test_what_is_no_word_is_not_written(name: str, value: Any, told: str) -> None:
    content = RecordDict({"terms": ConfigRecord({**OURS._asdict(), name: value})})
    with pytest.raises(Rejected, match=told):
        Terms.read(content)


def test_an_experiment_is_told_by_its_settings_and_its_exchange() -> None:
    ids = {
        experiment_id(how, name)
        for how in (None, Exchange(), Exchange(m=5), Exchange(noise=0.1))
        for name in ("one", "other")
    }
    assert len(ids) == 8


def test_the_hash_of_the_code_follows_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where two names and contents have the same text in a row."""
    monkeypatch.setattr(fedmix, "__file__", str(tmp_path / "__init__.py"))
    (tmp_path / "objectives").mkdir()
    (tmp_path / "report").mkdir()
    seen = []
    for name, text in (("a.py", "x"), ("a.py", "y"), ("b.py", "y"), ("a.py", "xb.py y")):
        (tmp_path / "objectives" / name).write_text(text)
        seen.append(terms.code.__wrapped__())
    assert len(set(seen)) == 4
    (tmp_path / "report" / "a.py").write_text("x")  # which trains nothing
    assert terms.code.__wrapped__() == seen[-1]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"fedmix": "9.9.9"}, "it has fedmix 9.9.9"),
        ({"code": "0123456789abcdef"}, "is other code than the server's"),
        ({"shape": "(7,)"}, "its samples have shape"),
    ],
)
def test_a_node_with_other_terms_sends_no_means_and_is_not_chosen(
    change: dict[str, Any], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    experiment = light(exchange={"m": 4}, training=EVERYONE)
    nodes = Nodes(client_app(task(experiment)), range(4))

    def skewed(asked: Message, reply: Message) -> Message:
        if asked.metadata.message_type == "query.join":
            reply.content["terms"] = ConfigRecord(
                {**OURS._asdict(), **reply.content.config_records["terms"], **change}
            )
        return reply

    nodes.tamper[2] = skewed
    with caplog.at_level(logging.WARNING, "fedmix.flower"):
        done = next(remote(experiment, nodes, min_clients=3).run(1))
    assert told in caplog.text
    assert (done.notes["clients"], done.notes["asked"]) == (3, 3)
    assert {m.metadata.message_type for m in nodes.sent if nodes.client_of(m) == 2} == {
        "query.join"
    }


def test_a_client_with_other_classes_is_not_let_in() -> None:
    agreed = task(light())
    theirs = replace(agreed, load=lambda *_: alone(*TEST, classes=5))
    with pytest.raises(TooFew, match="its labels are 5 classes, and the server's 3 classes"):
        remote(light(), Nodes(client_app(theirs), range(4)))
