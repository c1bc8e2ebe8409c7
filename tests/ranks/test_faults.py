"""Processes that train one run are killed, fail, hang, are stopped, or lose their launcher.

All processes are real. Each time nothing is lost, none is left, and a sentence says what happened.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedmix.runs.run import Run
from tests.ranks.start import LONG, ended, environment, start
from tests.ranks.victim import spec

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into Linux's /proc")

SMALL = ["--set", "training.epochs=1", "--set", "data.local_share=0.2", "--quiet"]
SMALL += ["--set", "engine.compile=false"]  # which so many rounds would be
SHORT, ENDLESS = 60, 100000  # rounds


def fedmix(*args: object, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedmix", *map(str, args)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=LONG, env=environment(**env)
    )


def wait_for(what: Callable[[], object], seconds: int = LONG) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


def workers_of(launcher: int) -> list[int]:
    """The processes that a launcher started to train, the oldest first."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat, line = (folder / "stat").read_text(), (folder / "cmdline").read_bytes()
        except OSError:  # it has ended
            continue
        if int(stat.rpartition(")")[2].split()[1]) == launcher and b"spawn_main" in line:
            found.append(int(folder.name))
    return sorted(found)


def is_alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def rounds(out: Path) -> list[dict[str, Any]]:
    """The metrics of the one run in a folder, without their times."""
    said = [path.read_text() for path in out.glob("*/metrics.jsonl")]
    lines = [json.loads(line) for line in "".join(said).splitlines() if line.endswith("}")]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


class Running:
    """`fedmix run` on two workers, with some rounds done."""

    def __init__(self, out: Path, until: int, *more: object, **env: str) -> None:
        command = ["run", "digits", "--rounds", until, *SMALL, "--workers", 2, "--out", out, *more]
        self.launcher = subprocess.Popen(
            [sys.executable, "-m", "fedmix", *map(str, command)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(**env),
        )  # fmt: skip
        wait_for(lambda: len(rounds(out)) > 2 or self.launcher.poll() is not None)
        self.pids = workers_of(self.launcher.pid)
        assert len(self.pids) == 2

    def wait(self) -> tuple[int, list[str]]:
        """Its exit code, and the lines of its errors; no process is left."""
        _, err = self.launcher.communicate(timeout=LONG)
        wait_for(lambda: not any(map(is_alive, self.pids)))
        return self.launcher.returncode, err.splitlines()


@pytest.mark.parametrize(
    "engine", ["sequential", pytest.param("vectorised", marks=pytest.mark.faults)]
)
def test_a_kill_in_mid_round_loses_nothing(engine: str, tmp_path: Path) -> None:
    """Started as srun does it. The other process says so and ends; started again, both go on from
    the checkpoint, and the states of clients and server end with the same bits as those of ranks
    that never stopped; with clients one by one, as those of one process.
    """

    def train(folder: str, last: int) -> list[tuple[int, str, str]]:
        """Two ranks, of which the second dies in round `last`."""
        victim = ["-m", "tests.ranks.victim", tmp_path / folder, engine, 1, last]
        return ended(start(2, victim))

    broken = train("run", 4)
    assert broken[1][0] == -signal.SIGKILL
    assert broken[0][0] == 75
    [said] = broken[0][2].splitlines()
    assert said.startswith("fedmix: another process of this run has ended, or does not answer (")
    assert said.endswith("); the same command goes on where it was")
    assert len(rounds(tmp_path)) == 3
    for code, _, err in train("run", 0):
        assert (code, err) == (0, "")
    if engine == "sequential":
        alone = spec(engine).federation()
        list(alone.run(5))
        whole = alone.state()
    else:
        train("whole", 0)
        whole = Run.open(tmp_path / "whole").restored().state()
    found = Run.open(tmp_path / "run").restored().state()
    assert found.keys() == whole.keys()
    for name, tensor in whole.items():
        assert torch.equal(tensor, found[name]), name


@pytest.mark.faults
def test_workers_are_started_again(tmp_path: Path) -> None:
    running = Running(tmp_path / "two", SHORT, "--max-restarts", 1)
    os.kill(running.pids[1], signal.SIGKILL)
    code, err = running.wait()
    assert code == 0, err
    [said] = [line for line in err if line.startswith("fedmix: ")]
    assert "of 2 was killed by SIGKILL, perhaps for lack of memory; starting again" in said
    done = fedmix("run", "digits", "--rounds", SHORT, *SMALL, "--out", tmp_path / "one")
    assert done.returncode == 0
    assert rounds(tmp_path / "two") == rounds(tmp_path / "one")


def test_a_client_that_diverges_ends_all_with_the_sentence_of_one_process(tmp_path: Path) -> None:
    told = []
    for workers in (1, 2):
        args = ["run", "digits", *SMALL, "--set", "training.lr=1e30", "--workers", workers]
        done = fedmix(*args, "--out", tmp_path / str(workers))
        assert done.returncode == 1
        assert list((tmp_path / str(workers)).glob("*/failure.json"))
        told.append(done.stderr.splitlines())
    assert len(told[1]) == 1
    assert told[1] == told[0]


@pytest.mark.faults
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_worker_ends_the_run(rank: int, tmp_path: Path) -> None:
    running = Running(tmp_path, ENDLESS)
    os.kill(running.pids[rank], signal.SIGKILL)
    code, err = running.wait()
    assert code == 1
    assert "killed by SIGKILL, perhaps for lack of memory; the same command goes on" in err[-1]
    assert [line for line in err if line.startswith("fedmix: ")] == err[-1:]


@pytest.mark.faults
def test_a_worker_that_hangs_ends_the_run(tmp_path: Path) -> None:
    """Nothing but SIGKILL ends a stopped process; PyTorch's launcher waits 30 seconds before it."""
    running = Running(tmp_path, ENDLESS, FEDMIX_TIMEOUT="3", TORCH_ELASTIC_SHUTDOWN_TIMEOUT="3")
    os.kill(running.pids[1], signal.SIGSTOP)
    code, err = running.wait()
    assert code == 1
    assert err[-1] == (
        "fedmix: a process does not answer any more; the same command goes on where it was"
    )


@pytest.mark.faults
def test_workers_end_with_their_launcher(tmp_path: Path) -> None:
    running = Running(tmp_path, ENDLESS)
    running.launcher.kill()
    assert running.wait()[0] == -signal.SIGKILL


@pytest.mark.faults
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_goes_on(number: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C finishes the round and writes a checkpoint; SIGTERM ends at once."""
    running = Running(tmp_path / "two", ENDLESS)
    running.launcher.send_signal(number)
    code, err = running.wait()
    assert code == 130
    done = len(rounds(tmp_path / "two"))
    if number == signal.SIGINT:
        assert err[-2] == "finishing this round; Ctrl-C again stops at once"
        assert err[-1].startswith(f"fedmix: stopped after round {done}; go on with: fedmix resume ")
    else:
        assert err[-1].startswith("fedmix: stopped")
