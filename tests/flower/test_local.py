"""A federation on this machine: settings that its nodes can hold, what is kept of an attempt, and
why it failed.
"""

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from fedmix import BadInput, FedmixError
from fedmix.cli import federation
from fedmix.experiment.presets import experiment
from fedmix.flower import local
from fedmix.flower.family import descendants
from fedmix.flower.processes import Link
from tests.flower.test_local_processes import END_LATER, LISTEN, WAIT

SERVE = (  # a server app with a telling name, as the SuperLink starts it
    "import http.server, subprocess, sys; "
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)', 'flwr-serverapp']); "
    "http.server.HTTPServer(('127.0.0.1', {port}), None).serve_forever()"
)


@pytest.mark.parametrize("nodes", [2, 3, 4])
def test_few_nodes_get_more_classes_each_and_hold_them_all(nodes: int) -> None:
    """Ten classes on n nodes: at least ⌈10/n⌉ each."""
    fitted, changed = local.with_nodes(experiment("digits", "fedmix"), nodes, None)
    least = {2: 5, 3: 4, 4: 3}[nodes]
    assert changed["data.classes_per_client"] == fitted.data.classes_per_client == least
    assert fitted.data.clients == fitted.training.clients_per_round == nodes
    data = fitted.build_data()
    assert len(data.clients) == nodes
    assert set(np.unique(data.y)) == set(range(10))


def test_enough_nodes_change_nothing_else() -> None:
    preset = experiment("digits", "fedmix")
    fitted, changed = local.with_nodes(preset, 30, None)
    assert changed == {}
    assert fitted == preset.with_settings({"data.clients": 30})
    assert local.with_nodes(preset, None, None) == (preset, {})
    averaged = preset.with_settings({"exchange.average": 8})
    assert local.with_nodes(averaged, 6, None)[1]["exchange.average"] == 6
    with pytest.raises(BadInput, match="--nodes 0: at least one is needed"):
        local.with_nodes(preset, 0, None)


def test_one_ledger_for_all_nodes_is_refused(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("most_rounds = 3\nledger = 'ledger.json'\n")
    with pytest.raises(BadInput, match="names a ledger"):
        federation.run("digits", nodes=2, policy=policy, out=tmp_path / "runs", quiet=True)
    assert not (tmp_path / "runs").exists()


def test_logs_of_earlier_attempts_stay_and_nothing_else_of_them(tmp_path: Path) -> None:
    first = local._new_attempt(tmp_path / "flower")
    (first / "node-0.log").write_text("why it failed")
    (first / "keys").mkdir()
    (first / "keys" / "client-0.key").write_text("secret")
    (first / "state.db").write_text("")
    second = local._new_attempt(tmp_path / "flower")
    assert (first.name, second.name) == ("1", "2")
    assert [path.name for path in first.iterdir()] == ["node-0.log"]
    assert (first / "node-0.log").read_text() == "why it failed"
    assert list(second.iterdir()) == []


@pytest.fixture
def acted(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Scripts in the place of Flower's processes, by name."""
    scripts = {"superlink": LISTEN}

    class Acted(Link):
        def start(self, name: str, _: Sequence[str]) -> subprocess.Popen[bytes]:
            script = scripts.get(name, WAIT).replace("{port}", str(self.port))
            return super().start(name, [sys.executable, "-c", script])

    monkeypatch.setattr("fedmix.flower.local.Link", Acted)
    return scripts


def start(tmp_path: Path) -> None:
    federation.run("digits", nodes=5, rounds=2, out=tmp_path, quiet=True)


def test_a_server_app_that_was_killed_is_missed_at_once(
    acted: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "ENDED_SECONDS", 0.5)
    acted["superlink"] = SERVE.replace("time.sleep(60)", "time.sleep(3)")
    acted["run"] = "import time; time.sleep(60)"  # Flower tells of it a minute later
    started = time.monotonic()
    with pytest.raises(FedmixError, match="its server ended before the first round without saying"):
        start(tmp_path)
    assert time.monotonic() - started < 30


@pytest.mark.parametrize(
    "said", ["sqlite3.OperationalError: database or disk is full", "[Errno 28] No space left on"]
)
def test_a_full_disk_is_called_that(said: str, acted: dict[str, str], tmp_path: Path) -> None:
    acted["run"] = f"print({said!r}); raise SystemExit(1)"
    with pytest.raises(FedmixError, match=r"the disk of .*flower/1 is full; make room, and the"):
        start(tmp_path)


def test_an_error_of_an_earlier_attempt_is_not_taken_for_todays(
    acted: dict[str, str], tmp_path: Path
) -> None:
    tell = "import pathlib; pathlib.Path('../../federation.log').open('a').write({!r})"
    acted["run"] = tell.format("2026-01-01 00:00:00,000 ERROR node 7 is made of wood\n")
    with pytest.raises(FedmixError, match=r"^the federation failed: node 7 is made of wood$"):
        start(tmp_path)
    acted["run"] = "raise SystemExit(1)"
    with pytest.raises(FedmixError, match=r"without saying why, .*; the logs are in .*flower/2$"):
        start(tmp_path)


def test_warnings_of_the_server_and_lost_nodes_are_shown(
    acted: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    acted["run"] = (
        "import pathlib, time; here = pathlib.Path('../..'); "
        "(here / 'metrics.jsonl').write_text('{\"round\": 1, \"loss\": 0.5}\\n'); "
        "(here / 'federation.log').write_text('2026-01-01 00:00:00,000 WARNING client 3 is gone\\n'"
        "'2026-01-01 00:00:00,000 INFO nothing of interest\\n'); time.sleep(3)"
    )
    acted["node-1"] = END_LATER
    with pytest.raises(FedmixError, match="ended after round 1 without saying why"):
        federation.run("digits", nodes=5, rounds=2, out=tmp_path)
    said = capsys.readouterr().err
    assert said.count("client 3 is gone") == 1
    assert said.count("node-1 ended (exit code 3); its log is") == 1
    assert "nothing of interest" not in said


def test_a_server_app_is_known_by_its_process(tmp_path: Path) -> None:
    link = Link(tmp_path)
    script = SERVE.replace("{port}", str(link.port))
    superlink = link.start("superlink", [sys.executable, "-c", script])
    try:
        link.wait_for(link.port, "superlink")
        deadline = time.monotonic() + 20
        while not link.serves() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert link.serves()
        [server] = descendants(superlink.pid)
        subprocess.run(["kill", "-9", str(server)], check=True)
        while link.serves() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not link.serves()
    finally:
        link.stop()
