"""`--jobs`: runs at the same time equal runs one after the other, and leave no process behind."""

import os
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from fedmix.core.errors import BadInput, Collapsed, DataError, Diverged
from fedmix.experiment.labels import titles
from fedmix.experiment.presets import experiment
from fedmix.experiment.spec import Experiment
from fedmix.runs import progress
from fedmix.runs.execute import run_each
from fedmix.runs.jobs import _environment
from fedmix.runs.progress import Progress
from fedmix.runs.run import Run
from tests.runs.test_runs import same_run
from tests.test_cli import fedmix
from tests.training.test_failures import collapsing

TABLE = [
    "reproduce",
    "epochs",
    "--rows",
    "fedavg,fedmix",
    "--columns",
    "1",
    "--scale",
    "small",
    "--rounds",
    "30",
]


def digits(**settings: Any) -> Experiment:
    return experiment("digits", "fedavg").with_settings(
        {"rounds": 2, "data.local_share": 0.1} | settings
    )


def processes(folder: Path) -> list[int]:
    """Children that work in a folder."""
    listed = subprocess.run(
        ["ps", "-ewwo", "pid,args"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [
        int(line.split()[0])
        for line in listed
        if "fedmix.runs.jobs" in line and str(folder) in line
    ]


def test_stopped_and_continued_they_end_as_one_after_the_other_does(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """To the bit: another number of threads might round otherwise."""
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
    args, alone, together = [*TABLE, "--data", tiny], tmp_path / "alone", tmp_path / "together"
    assert fedmix(monkeypatch, *args, "--out", alone, "--quiet") == 0
    table = capsys.readouterr().out
    update, presses = Progress.update, [signal.SIGINT]

    def press(self: Progress, line: dict[str, Any]) -> None:
        if presses:
            os.kill(os.getpid(), presses.pop())
        update(self, line)

    with monkeypatch.context() as patched:
        patched.setattr(Progress, "update", press)
        assert fedmix(monkeypatch, *args, "--out", together, "--jobs", "2") == 130
    err = capsys.readouterr().err
    assert "finishing this round" in err
    assert err.splitlines()[-1].startswith("fedmix: stopped with ")
    assert not processes(together)
    assert len(list(together.glob("*/summary.json"))) < 2
    assert list(together.glob("*/checkpoint.safetensors"))
    assert fedmix(monkeypatch, *args, "--out", together, "--jobs", "2", "--quiet") == 0
    assert capsys.readouterr().out == table
    folders = sorted(folder.name for folder in alone.iterdir())
    assert folders == sorted(folder.name for folder in together.iterdir())
    assert len(folders) == 2
    for name in folders:
        assert same_run(alone / name, together / name)


@pytest.mark.parametrize("quiet", [False, True])
def test_why_a_run_of_a_table_was_lost_is_said_once(
    quiet: bool,
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    args = [
        *TABLE,
        "--data",
        tiny,
        "--out",
        tmp_path,
        "--set",
        "training.lr=1e39",
        "--jobs",
        "2",
        *(["--quiet"] if quiet else []),
    ]
    assert fedmix(monkeypatch, *args) == 0
    assert capsys.readouterr().err.count("is NaN or infinite") == 2


def test_each_outcome_arrives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Data that cannot be read are told at once, and runs on other data go on."""
    wanted = {
        "unreadable": experiment("cifar10", "fedavg"),
        "unreadable too": experiment("cifar10", "fedavg", seed=1),
        "good": digits(),
        "diverges": digits(**{"training.lr": 1e39}),
        "collapses": collapsing(),
        "refused": digits(**{"data.clients": 6, "training.clients_per_round": 7}),
    }
    runs = [Run(spec, tmp_path / name) for name, spec in wanted.items()]
    found = {
        run.folder.name: outcome
        for run, outcome in run_each(
            runs, tmp_path / "nowhere", command="fedmix run", quiet=False, jobs=2
        )
    }
    *unreadable, good, diverged, collapsed, refused = (found[name] for name in wanted)
    assert all(
        isinstance(error, DataError) and "there are no parquet files" in str(error)
        for error in unreadable
    )
    assert good == runs[2].summary
    assert isinstance(diverged, Diverged)
    assert (diverged.round, diverged.step) == (1, 1)
    assert isinstance(collapsed, Collapsed)
    assert str(collapsed).startswith(
        f"after round {collapsed.round} the model is hardly better than a guess: "
    )
    assert isinstance(refused, BadInput)
    assert "training.clients_per_round=7 is more than the 6 clients" in str(refused)
    said = capsys.readouterr().err.splitlines()
    names = titles([run.experiment for run in runs])[2:]  # of those that could be loaded
    assert sorted(line for line in said if "started" in line) == [
        f"[{i}/6] {name}  started" for i, name in enumerate(names[:3], 3)
    ]  # the last one never starts
    ended = (
        "round 2/2  accuracy",
        "round 1, client",
        f"after round {collapsed.round} the",
        "training.clients_per_round=7",
    )
    for number, (name, end) in enumerate(zip(names, ended, strict=True), 3):
        assert [line for line in said if line.startswith(f"[{number}/6] {name}  {end}")]


def test_killed_processes_are_told_and_none_is_left(tmp_path: Path) -> None:
    """First a child is killed, then its parent: the other child must not go on alone."""
    options = [
        "--algorithms",
        "fedavg",
        "--seeds",
        "2",
        "--rounds",
        "1000000",
        "--out",
        tmp_path,
        "--jobs",
        "2",
    ]
    command = [sys.executable, "-m", "fedmix.cli.app", "compare", "digits", *map(str, options)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stderr
        for line in parent.stderr:
            if line.startswith("[2/2] "):
                break
        first, second = processes(tmp_path)
        os.kill(first, signal.SIGKILL)
        told = next(line for line in parent.stderr if "killed" in line)
        assert (
            "  its process was killed by signal 9 (Killed), perhaps for lack of memory; the same "
            "command" in told
        )
        assert processes(tmp_path) == [second]
        parent.kill()
        parent.wait()
    end = time.monotonic() + 120
    while processes(tmp_path) and time.monotonic() < end:
        time.sleep(0.1)
    assert not processes(tmp_path)


def test_cores_are_divided_unless_the_caller_did(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("OMP_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    cpu, gpu = (Run(digits(**{"engine.device": device}), Path()) for device in ("cpu", "cuda"))
    assert [_environment(cpu, 3).get(name) for name in names] == ["2", "2"]
    assert [_environment(cpu, 9).get(name) for name in names] == ["1", "1"]
    assert [_environment(gpu, 3).get(name) for name in names] == [None, "2"]
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert [_environment(cpu, 3).get(name) for name in names] == ["5", "2"]


def test_names_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Brackets and colons are no markup, and a long name stays on one line."""
    name = Path("[a]", "[/b] :bug:" + 100 * "x")
    progress.tell_written(name)
    assert capsys.readouterr().err == f"wrote {name}\n"


def test_devices_are_handed_out_and_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three jobs on two of four GPUs, of which this process may see 4, 5, 6 and 7; each run is a
    child that ends at once.
    """
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr("fedmix.runs.execute.refused", lambda *_: {})
    seen, real = [], subprocess.Popen

    def started(_: list[str], env: dict[str, str], **more: Any) -> Any:
        seen.append(env["CUDA_VISIBLE_DEVICES"])
        return real([sys.executable, "-c", "print('[\"done\", {}]')"], env=env, **more)

    monkeypatch.setattr(subprocess, "Popen", started)
    runs = [Run(digits(seed=seed), tmp_path / str(seed)) for seed in range(5)]
    done = list(run_each(runs, None, command="", quiet=True, jobs=3, gpus=[1, 3]))
    assert [outcome for _, outcome in done] == [{}] * 5
    assert seen[:3] == ["5", "7", "5"]
    assert set(seen[3:]) <= {"5", "7"}
    for jobs, gpus, said in (
        (1, [1, 3], "--jobs 1 uses 1 of 2 devices; give --jobs 2"),
        (2, [1, 4], "device cuda:4 does not exist: this machine shows 4 GPUs"),
    ):
        with pytest.raises(BadInput, match=said):
            list(run_each(runs, None, command="", quiet=True, jobs=jobs, gpus=gpus))


def test_a_run_that_failed_keeps_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = []

    def fails(self: Run, *_: Any, **__: Any) -> None:
        data = torch.zeros(3)
        held.append(weakref.ref(data))
        raise BadInput(f"{self.folder.name} cannot train on {data.shape}")

    monkeypatch.setattr(Run, "execute", fails)
    runs = [
        Run(experiment("digits", "fedavg", seed=seed), tmp_path / str(seed)) for seed in range(2)
    ]
    done = list(run_each(runs, None, command="", quiet=True))
    assert [str(error) for _, error in done] == [
        f"{seed} cannot train on torch.Size([3])" for seed in range(2)
    ]
    assert [there() for there in held] == [None, None]
