"""Flower's quickstart in examples/, as it is and with the diff that adds FedMix."""

import json
from pathlib import Path

import pytest

from fedmix.flower.processes import Link
from tests.flower.quickstart import EXAMPLE, apart, write


def test_the_diff_is_short_and_applies(tmp_path: Path) -> None:
    added = [
        line[1:].strip()
        for line in (EXAMPLE / "fedmix.diff").read_text().splitlines()
        if line.startswith("+") and not line.startswith("+++")
    ]
    assert len([line for line in added if line]) <= 15
    app = write(tmp_path / "app", "fedmix")
    assert "share_means(app, " in (app / "quickstart" / "client_app.py").read_text()


def test_the_page_shows_the_lines_of_the_diff() -> None:
    page = (EXAMPLE.parents[1] / "docs" / "flower-own-app.md").read_text()
    shown = page.partition("```diff\n")[2].partition("```")[0].splitlines()
    changed = {line for line in shown if line[0] in "+-"}
    assert len(changed) > 10
    assert changed <= set((EXAMPLE / "fedmix.diff").read_text().splitlines())


@pytest.mark.parametrize("version", ["fedavg", "fedmix"])
def test_both_versions_learn(version: str, tmp_path: Path) -> None:
    """Ten digits, so that guessing is right one time in ten."""
    found = apart(write(tmp_path / "app", version), 4, seed=0)
    assert len(found) == 5
    assert max(found) > 0.35 > found[0]


def test_the_two_pieces_work_between_processes(tmp_path: Path) -> None:
    """One round of two nodes: roll call, means, pool, and training."""
    app = write(tmp_path / "app", "fedmix")
    ledger = tmp_path / "ledger.json"
    policy = tmp_path / "policy.toml"
    policy.write_text(f"ledger = '{ledger}'\nmost_rounds = 1\n")
    with Link(tmp_path / "link", env={"OMP_NUM_THREADS": "1"}) as link:
        for client in range(2):
            config = {"policy": str(policy)} if client else {}
            link.start_node(client, num_partitions=2, **config)
        settings = {"num-clients": 2, "num-server-rounds": 1, "fraction-train": 1.0}
        run = link.run(app, **settings, **{"fraction-evaluate": 0.0, "local-epochs": 1})
        run.wait(300)
        said, node = link.log("run").read_text(), link.log("node-1").read_text()
    assert "client 1 is there" in said
    assert "version 1 of the pool has 142 entries" in said  # 719 // 10 and 718 // 10
    assert "accuracy by round: [" in said
    assert "71 means leave this node, over 10 or more samples each; without noise" in node
    assert "version 1 of the pool came, with 142 means" in node
    assert json.loads(ledger.read_text())["rounds"] == 1
