"""The examples run as a user would run them."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(monkeypatch: pytest.MonkeyPatch, name: str, *args: str) -> None:
    """As a script, in this process, which has the imports behind it."""
    monkeypatch.setattr(sys, "argv", [name, *args])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_demo_prints_a_table_and_draws_a_picture(tmp_path: Path) -> None:
    """In a process of its own, since it starts others."""
    command = [sys.executable, str(EXAMPLES / "demo.py"), "--rounds", "2", "--seeds", "1"]
    environment = {**os.environ, "COLUMNS": "100"}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert all(re.search(rf"{name}.* ± ", done.stdout) for name in ("FedAvg", "NaiveMix", "FedMix"))
    assert (tmp_path / "demo-out" / "digits.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("flag", ["--rounds", "--seeds"])
def test_demo_refuses_nothing_to_do(
    flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, "demo.py", flag, "0")
    assert ended.value.code == 2
    assert "must be at least 1" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_diabetes_beats_the_mean(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, "diabetes.py")
    errors = [float(e) for e in re.findall(r"rounds: ([0-9.]+)", capsys.readouterr().out)]
    assert len(errors) == 3
    assert all(0 < e < 0.8 for e in errors)


@pytest.mark.parametrize(
    "name", ["own_data.py", "own_objective.py", "own_server_step.py", "own_choice.py"]
)
def test_ones_own(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # one of them writes run folders
    run(monkeypatch, name, "--rounds", "1")
    assert len(re.findall(r": accuracy [0-9.]+ % after 1 rounds", capsys.readouterr().out)) >= 2


def test_callbacks_log_and_stop(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, "callback.py", "--rounds", "3", "--enough", "0.01")
    said = capsys.readouterr().out
    assert len(re.findall(r"round 1: loss [0-9.]+, accuracy [0-9.]+ %, rate 0.01", said)) == 1
    assert "the last round was 1\n" in said
    assert "round 2:" not in said


def test_ones_own_metrics(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, "own_metrics.py", "--rounds", "1")
    said = capsys.readouterr().out
    shares = [float(v) for v in re.findall(r"recall\.[0-9]: ([0-9.]+)", said)]
    assert len(shares) == 10
    assert all(0 <= share <= 1 for share in shares)
    assert re.search(r"overconfidence: -?[0-9.]+", said)
