"""What an owner allows besides the form of means, and the account that its node keeps."""

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedmix.core.errors import BadInput
from fedmix.flower import client_app
from fedmix.flower.ledger import Account
from fedmix.flower.policy import Policy
from fedmix.flower.roster import TooFew
from fedmix.flower.terms import experiment_id
from tests.flower.nodes import Nodes
from tests.flower.tasks import EVERYONE, SIZES, light, owners, remote, task

HOW = {"m": 4}


def federation(tmp_path: Path, policy: str, rounds: int = 1, **settings: Any) -> tuple[Any, Any]:
    """Nodes that have just started, a run of them, in which client 2 has this policy."""
    path = tmp_path / "policy.toml"
    path.write_text(policy.replace("LEDGER", str(tmp_path / "ledger.json")))
    experiment = light(exchange=HOW, training=EVERYONE)
    nodes = Nodes(client_app(task(experiment)), [0, 1])
    nodes.add(2, policy=str(path))
    nodes.add(3)
    real = remote(experiment, nodes, **settings)
    list(real.run(rounds))
    return nodes, real


def test_a_restarted_node_counts_what_left_it_before(tmp_path: Path) -> None:
    """By hand: 30 // 4 means in each of two runs, and two updates of the same bytes."""
    for times in (1, 2):
        federation(tmp_path, "ledger = 'LEDGER'", rounds=2)
        counts = json.loads((tmp_path / "ledger.json").read_text())
        assert (counts["releases"], counts["means"]) == (times, times * (SIZES[2] // 4))
        assert (counts["smallest"], counts["rounds"]) == (4, 2 * times)
    weights = 4 * (6 * 5 + 5 + 5 * 3 + 3)
    assert 4 * weights < counts["bytes"] < 4 * (weights + 4 * 200)  # and a header for each array


def test_no_further_means_leave_a_restarted_node_than_its_policy_allows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    policy = "ledger = 'LEDGER'\nmost_releases = 1\n"
    assert owners(federation(tmp_path, policy)[1])[2] == 7
    with caplog.at_level(logging.WARNING, "fedmix.flower"):
        nodes, real = federation(tmp_path, policy)
    assert owners(real)[2] == 0
    assert "client 2 refuses: its policy lets no further means out" in caplog.text
    assert real.notes["replied"] == 4  # it trains on
    assert json.loads((tmp_path / "ledger.json").read_text())["releases"] == 1
    list(real.run(2))
    assert len(nodes.of_kind("query.means", 2)) == 1


def test_the_same_answer_twice_is_one_release(tmp_path: Path) -> None:
    nodes, real = federation(tmp_path, "ledger = 'LEDGER'\nmost_releases = 1\n")
    real.exchange.settled[:] = 0  # ask again
    list(real.run(2))
    assert len(nodes.of_kind("query.means", 2)) == 2
    assert owners(real)[2] == 7


def test_a_client_trains_in_as_many_rounds_as_its_policy_allows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    policy = "ledger = 'LEDGER'\nmost_rounds = 3\n"
    federation(tmp_path, policy, rounds=2)
    with caplog.at_level(logging.WARNING, "fedmix.flower"):
        nodes, real = federation(tmp_path, policy, rounds=3)
    assert len(nodes.of_kind("train", 2)) == 1  # and it is not asked again
    assert caplog.text.count("client 2 is not asked to train") == 1
    assert "refuses" not in caplog.text
    assert (real.notes["asked"], real.notes["replied"], owners(real)[2]) == (3, 3, 7)


def test_a_client_may_give_means_and_no_weights(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "fedmix.flower"):
        nodes, real = federation(tmp_path, "share_weights = false", rounds=2)
    assert not nodes.of_kind("train", 2)
    assert not nodes.of_kind("query.pool", 2)
    assert caplog.text.count("client 2 is not asked to train") == 1
    assert (real.notes["asked"], real.notes["replied"], owners(real)[2]) == (3, 3, 7)


def test_a_client_refuses_to_train_whatever_it_is_asked(tmp_path: Path) -> None:
    nodes, real = federation(tmp_path, "share_weights = false")
    nodes.contexts[nodes.node_of(0)].node_config["policy"] = str(tmp_path / "policy.toml")
    list(real.run(2))  # the policy came after the roll call
    assert len(nodes.of_kind("train", 0)) == 2
    assert real.notes["replied"] == 2


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        ("experiments = ['0123']", "its policy does not accept this experiment"),
        ("fedmix = ['0.0.1', '0.0.2']", "its policy does not accept its version of fedmix"),
    ],
)
def test_an_owner_names_experiments_and_versions(
    policy: str, told: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "fedmix.flower"):
        nodes, real = federation(tmp_path, policy, min_clients=3)
    assert f"refuses: {told}" in caplog.text
    assert real.notes["clients"] == 3
    assert {m.metadata.message_type for m in nodes.sent if nodes.client_of(m) == 2} == {
        "query.join"
    }


def test_an_owner_accepts_what_it_names(tmp_path: Path) -> None:
    agreed = task(light(exchange=HOW, training=EVERYONE))
    id_ = experiment_id(agreed.exchange, agreed.experiment.identity)
    assert federation(tmp_path, f"experiments = ['{id_}']")[1].notes["replied"] == 4


def test_a_nodes_log_says_what_left(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "fedmix.flower"):
        federation(tmp_path, "ledger = 'LEDGER'\nleast_noise = 0.1\nmost_clip = 2.0")
    for line in (
        "this node is client 2 of experiment ",
        "7 means leave this node, over 4 or more samples each; noise of deviation 0.1 on inputs "
        "and 0.1 on labels, clipped to a norm of 2; release 1 by its ledger",
        "version 1 of the pool came, with 17 means",
        "bytes leave this node; round 1 by its ledger",
    ):
        assert line in caplog.text


@pytest.mark.parametrize("content", ["", "[1]", '{"releases": 1}', '{"releases": -1}'])
def test_with_a_damaged_ledger_nothing_leaves(content: str, tmp_path: Path) -> None:
    (tmp_path / "ledger.json").write_text(content)
    with pytest.raises(TooFew, match="3 of 4 clients came"):
        federation(tmp_path, "ledger = 'LEDGER'")
    assert (tmp_path / "ledger.json").read_text() == content


def test_a_ledger_that_cannot_be_written_lets_nothing_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "fedmix.flower"):
        _, real = federation(tmp_path, "ledger = '/nowhere/at/all.json'", min_share=0.5)
    assert caplog.text.count("client 2 refuses: its ledger cannot be used") == 2
    assert "/nowhere" not in "".join(said for said in caplog.messages if "refuses" in said)
    assert (real.notes["replied"], owners(real)[2]) == (3, 0)


COUNT = """
import sys
from pathlib import Path
from fedmix.flower.ledger import Account
account = Account(Path(sys.argv[1]))
for _ in range(50):
    with account.writing() as counts:
        counts.released(2, 5)
"""


def test_processes_at_once_lose_no_count(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    running = [subprocess.Popen([sys.executable, "-c", COUNT, str(path)]) for _ in range(2)]
    assert [process.wait(120) for process in running] == [0, 0]
    assert (Account(path).releases, Account(path).means) == (100, 200)


def test_a_count_that_fails_changes_nothing(tmp_path: Path) -> None:
    def fail(account: Account) -> None:
        with account.writing() as counts:
            counts.released(2, 5)
            raise ZeroDivisionError

    account = Account(tmp_path / "ledger.json")
    with account.writing() as counts:
        counts.released(2, 5)
    with pytest.raises(ZeroDivisionError):
        fail(account)
    assert Account(tmp_path / "ledger.json").releases == 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("most_releases = 1", "most_releases needs a ledger, which keeps the count"),
        ("most_rounds = 1", "most_rounds needs a ledger"),
        ("most_releases = -1\nledger='a'", "most_releases=-1 must be a whole number from 0 on"),
        ("most_rounds = 0.5\nledger='a'", "most_rounds=0.5 must be a whole number from 0 on"),
        ("share_weights = 0", "share_weights=0 must be true or false"),
        ("experiments = 'a'", "experiments='a' must be a list of texts"),
        ("fedmix = [1]", r"fedmix=\[1\] must be a list of texts"),
        ("ledger = ''", "ledger='' must be the path of a file"),
    ],
)
def test_a_bad_policy_is_refused_in_one_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(BadInput, match=sentence):
        Policy.load(path)
