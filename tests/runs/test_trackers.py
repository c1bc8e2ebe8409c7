"""Trackers hear of every round, know a run that goes on, and lose none when they fail."""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from fedmix import BadInput, Federation, FedMix, Training, data, models, record
from fedmix.core.errors import FedmixWarning
from fedmix.core.registry import TRACKERS
from fedmix.models import initialised
from fedmix.runs.run import Listener
from fedmix.runs.trackers import track, tracking

HEARD: list[Any] = []


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a tracker called `listed` hears; one called `broken` fails in round 2."""

    @contextmanager
    def listed(folder: Path, settings: Mapping[str, str]) -> Iterator[Listener]:
        HEARD[:] = [folder.name, settings]
        try:
            yield HEARD.append
        except Exception as error:
            HEARD.append(f"ended by {type(error).__name__}")
            raise
        finally:
            HEARD.append("closed")

    @contextmanager
    def broken(folder: Path, settings: Mapping[str, str]) -> Iterator[Listener]:
        def listen(line: dict[str, Any]) -> None:
            if line["round"] == 2:
                raise OSError("no route to host")

        yield listen
        raise ValueError(f"{folder} with {len(settings)} settings stays open")

    assert "tensorboard" in TRACKERS  # which are loaded now
    monkeypatch.setattr(TRACKERS, "_entries", dict(TRACKERS._entries))
    for tracker in (listed, broken):
        TRACKERS.add(tracker.__name__)(tracker)
    return HEARD


def federation(**more: Any) -> Federation:
    return Federation(
        initialised(models.digits_cnn, 0), data.digits(clients=6), FedMix(lam=0.1),
        Training(clients_per_round=2, batch_size=100), **more,
    )  # fmt: skip


def test_a_tracker_that_fails_loses_no_run(heard: list[Any], tmp_path: Path) -> None:
    with pytest.warns(FedmixWarning) as warned:
        summary = record(federation(), tmp_path / "a", 3, track="broken, listed", quiet=True)
    assert [str(one.message) for one in warned if one.category is FedmixWarning] == [
        "broken is told nothing more (no route to host); the run itself goes on",
        f"broken is told nothing more ({tmp_path / 'a'} with {len(heard[1])} settings stays open); "
        "the run itself goes on",
    ]
    assert summary["rounds"] == 3
    name, settings, *lines, end = heard
    assert (name, settings["training.batch_size"], end) == ("a", "100", "closed")
    saved = (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()
    assert lines == [json.loads(line) for line in saved]


def test_a_tracker_hears_what_ends_a_run(heard: list[Any], tmp_path: Path) -> None:
    def give_up(*_: object) -> None:
        raise ZeroDivisionError

    run = federation(callbacks=[give_up])
    with pytest.raises(ZeroDivisionError):
        record(run, tmp_path / "a", 3, track="listed", quiet=True)
    assert heard[2:] == ["ended by ZeroDivisionError", "closed"]


def test_a_callback_tells_them_too(heard: list[Any], tmp_path: Path) -> None:
    with track("listed", tmp_path / "mine", {"note": "first"}) as callback:
        *_, last = federation(callbacks=[callback]).run(2)
    assert last.metrics is not None
    name, settings, first, second, end = heard
    assert (name, settings, end) == ("mine", {"note": "first"}, "closed")
    assert (first["round"], second["accuracy"]) == (1, last.metrics["accuracy"])


def refusal(name: str, folder: Path) -> str:
    """What is said when a tracker is refused."""
    with pytest.raises(BadInput) as refused, tracking(name, folder, {}):
        pass
    return str(refused.value)


def test_unknown_and_missing_trackers_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = refusal("tensorboard,mflow", tmp_path)
    assert said.startswith("tracker 'mflow' is unknown; did you mean mlflow? Known are mlflow, ")
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    for name in ("wandb", "mlflow", "tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
        said = refusal(name, tmp_path)
        assert said == f"{name} needs its package; run: pip install 'fedmix[{name}]'"
    assert not list(tmp_path.iterdir())


def run(folder: Path, tracker: str, rounds: int, env: dict[str, str], rate: str = "0.01") -> Path:
    """A run on the command line in a process of its own, since these libraries warn at import."""
    command = ["run", "digits", "--rounds", rounds, "--set", "data.local_share=0.2", "--quiet"]
    command += f"--set training.lr={rate}".split()
    if list(folder.glob("runs/*")):
        command = ["resume", folder / "runs", "--rounds", rounds, "--quiet"]
    else:
        command += ["--out", folder / "runs"]
    done = subprocess.run(
        [sys.executable, "-m", "fedmix", *map(str, command), "--track", tracker],
        env=os.environ | env, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == (rate != "0.01"), done.stderr
    assert "is told nothing more" not in done.stderr
    [made] = (folder / "runs").iterdir()
    return made


@pytest.mark.skipif(not find_spec("mlflow"), reason="mlflow is not installed")
def test_mlflow_has_every_round_of_a_run_that_went_on(tmp_path: Path) -> None:
    env = {"MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'mlflow.db'}"}
    for rounds in (2, 3):
        made = run(tmp_path, "mlflow", rounds, env)
    lines = [json.loads(line) for line in (made / "metrics.jsonl").read_text().splitlines()]
    with sqlite3.connect(tmp_path / "mlflow.db") as base:
        seen = base.execute("select step, value from metrics where key = 'accuracy' order by step")
        assert seen.fetchall() == [(line["round"], line["accuracy"]) for line in lines]
        [(name, status)] = base.execute("select name, status from runs").fetchall()
        assert (name, status) == (made.name, "FINISHED")
        rate = base.execute("select value from params where key = 'training.lr'")
        assert rate.fetchall() == [("0.01",)]
        assert base.execute("select name from experiments where name = 'fedmix'").fetchall()


@pytest.mark.skipif(not find_spec("mlflow"), reason="mlflow is not installed")
def test_mlflow_knows_a_run_that_failed(tmp_path: Path) -> None:
    """The rate is right for the first round, and far too large after it."""
    base = tmp_path / "mlflow.db"
    settings = {"MLFLOW_TRACKING_URI": f"sqlite:///{base}"}
    run(tmp_path, "mlflow", 3, settings, rate="1e-6 --set training.lr_decay=1e12")
    with sqlite3.connect(base) as found:
        assert found.execute("select status from runs").fetchall() == [("FAILED",)]


@pytest.mark.skipif(not find_spec("wandb"), reason="wandb is not installed")
def test_wandb_has_every_round_of_a_run_that_went_on(tmp_path: Path) -> None:
    """Offline; a second part has the name of the first, so that both are one run when synced."""
    for rounds in (2, 3):
        made = run(tmp_path, "wandb", rounds, {"WANDB_MODE": "offline"})
    name = json.loads((made / "tracking.json").read_text())["wandb"]
    files = sorted(made.glob("wandb/offline-run-*/run-*.wandb"))
    assert [file.name for file in files] == [f"run-{name}.wandb"] * 2
    code = """if True:
        import json, sys
        from wandb.proto.wandb_internal_pb2 import Record
        for path in sys.argv[1:]:
            content, at, whole = open(path, "rb").read(), 7, b""  # 7: the file's own header
            while at < len(content):
                if -at % 32768 < 7:  # no header of a piece fits into this block
                    at += -at % 32768
                length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
                whole, at = whole + content[at + 7 : at + 7 + length], at + 7 + length
                if kind in (2, 3):  # first and middle pieces of a record
                    continue
                found, whole = Record.FromString(whole), b""
                told = {i.key or ".".join(i.nested_key): i.value_json for i in found.history.item}
                if "accuracy" in told:
                    print(json.dumps([int(told["_step"]), float(told["accuracy"])]))
    """
    read = subprocess.run([sys.executable, "-c", code, *files], capture_output=True, text=True)
    lines = [json.loads(line) for line in (made / "metrics.jsonl").read_text().splitlines()]
    assert [json.loads(line) for line in read.stdout.splitlines()] == [
        [line["round"], line["accuracy"]] for line in lines
    ], read.stderr
