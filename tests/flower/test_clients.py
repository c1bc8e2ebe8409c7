"""Clients that come late, leave, return, change their data, or claim to be someone else."""

import logging
from typing import Any

import pytest

from fedmix.flower import client_app, wire
from fedmix.flower.roster import TooFew
from tests.flower.nodes import Nodes
from tests.flower.tasks import SIZES, light, owners, remote, start, task


def versions(nodes: Nodes, client: int) -> list[int]:
    """The versions of the pool that were sent to a client."""
    return [wire.said(m.content, "version", int) for m in nodes.of_kind("query.pool", client)]


def test_a_client_that_joins_late_adds_its_means_and_everyone_gets_the_new_pool_once() -> None:
    nodes, real = start(3)
    first = next(real.run(1))
    assert (first.notes["asked"], first.notes["pool_version"]) == (3, 1)
    nodes.add(3)
    *_, third = real.run(3)
    assert (third.notes["asked"], third.notes["pool_version"]) == (4, 2)
    assert owners(real) == [n // 4 for n in SIZES]
    assert [versions(nodes, k) for k in (0, 3)] == [[1, 2], [2]]
    assert len(nodes.of_kind("query.means", 0)) == 1


def test_a_client_whose_data_changed_sends_new_means_and_others_get_the_pool_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
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
    assert versions(nodes, 0) == [1, 2]


def test_a_node_that_comes_back_gets_the_pool_again_and_sends_no_means_again() -> None:
    nodes, real = start()
    next(real.run(1))
    del nodes.contexts[nodes.node_of(2)]
    second = next(real.run(2))
    assert (second.notes["asked"], second.notes["clients"], second.notes["pool_version"]) == (
        3,
        3,
        1,
    )
    nodes.sent.clear()
    nodes.add(2)
    third = next(real.run(3))
    assert (third.notes["asked"], third.notes["replied"], third.notes["pool_version"]) == (4, 4, 1)
    assert not nodes.of_kind("query.means")
    assert versions(nodes, 2) == [1]
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
def test_a_node_without_a_clients_number_is_not_let_in(
    number: Any, caplog: pytest.LogCaptureFixture
) -> None:
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
    with pytest.raises(
        TooFew, match=r"0 of 4 clients came within 0.1 s; start the others, or lower min-clients"
    ):
        remote(experiment, nodes, join_timeout=0.1)


def test_for_a_chosen_client_that_is_away_another_takes_part() -> None:
    experiment = light(exchange={"m": 4})
    nodes = Nodes(client_app(task(experiment)), [0, 1, 2])
    real = remote(experiment, nodes, min_clients=3)
    rounds = list(real.run(3))
    assert [r.notes["asked"] for r in rounds] == [3, 3, 3]


def test_a_reply_that_never_comes_does_not_stop_the_round() -> None:
    nodes, real = start()
    nodes.tamper = {
        3: lambda asked, reply: None if asked.metadata.message_type == "train" else reply
    }
    real.settings = real.settings.__class__(**{**vars(real.settings), "timeout": 0.1})
    done = next(real.run(1))
    assert (done.notes["asked"], done.notes["replied"]) == (4, 3)
