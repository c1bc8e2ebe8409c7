"""The examples run as a user would run them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name: str, *args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, EXAMPLES / name, *args],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=300,
        env={**os.environ, "COLUMNS": "100"},
    )


def test_demo_prints_a_table_and_draws_a_picture(tmp_path: Path) -> None:
    done = run("demo.py", "--rounds", "2", "--seeds", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert all(re.search(rf"{name}.* ± ", done.stdout) for name in ("FedAvg", "NaiveMix", "FedMix"))
    assert (tmp_path / "demo-out" / "digits.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("flag", ["--rounds", "--seeds"])
def test_demo_refuses_nothing_to_do(flag: str, tmp_path: Path) -> None:
    done = run("demo.py", flag, "0", cwd=tmp_path)
    assert done.returncode == 2
    assert "must be at least 1" in done.stderr
    assert not list(tmp_path.iterdir())


def test_diabetes_beats_the_mean(tmp_path: Path) -> None:
    done = run("diabetes.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    errors = [float(e) for e in re.findall(r"rounds: ([0-9.]+)", done.stdout)]
    assert len(errors) == 3
    assert all(0 < e < 0.8 for e in errors)
