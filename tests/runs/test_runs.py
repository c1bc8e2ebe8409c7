"""Runs survive kills, torn files, full disks, other processes and changed specs."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fedmix import BadInput, FedmixError
from fedmix.core import files
from fedmix.core.errors import Interrupted
from fedmix.experiment.presets import experiment
from fedmix.experiment.spec import Experiment
from fedmix.report import load_runs
from fedmix.runs import checkpoint
from fedmix.runs import run as runs
from fedmix.runs.folder import locked
from fedmix.runs.run import Run
from fedmix.runs.summary import SEEDED, summarise
from tests.runs.victim import SPEC

ROOT = Path(__file__).parents[2]


def tiny(**settings: Any) -> Experiment:
    quick = {"rounds": 4, "training.epochs": 1, "data.clients": 10, "data.local_share": 0.2}
    return experiment("digits", "fedmix", seed=1).with_settings(quick | settings)


def metrics(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


def same_run(a: Path, b: Path) -> bool:
    assert [p.name for p in a.glob("means-*")] == [p.name for p in b.glob("means-*")]
    names = ["checkpoint.safetensors", *(p.name for p in a.glob("means-*"))]
    ours, theirs = ([load_file(folder / name) for name in names] for folder in (a, b))
    equal = [
        x.keys() == y.keys() and all(torch.equal(x[n], y[n]) for n in x)
        for x, y in zip(ours, theirs, strict=True)
    ]
    return metrics(a) == metrics(b) and all(equal)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of `tiny()` that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole")
    Run(tiny(), folder).execute()
    return folder


KILLED = """
import os, signal, sys
from pathlib import Path
from unittest import mock
from fedmix.runs.run import Run

unlink = Path.unlink

def killed(path, **how):
    if path.name == "means-3.safetensors":
        os.kill(os.getpid(), signal.SIGKILL)
    unlink(path, **how)

with mock.patch.object(Path, "unlink", killed):
    Run.open(Path(sys.argv[1])).execute()  # whose only checkpoint is that of the last round
"""


def test_killed_before_the_last_rounds_old_means_are_removed_it_removes_them_later(
    tmp_path: Path,
) -> None:
    """Means of hidden states have a new version in every round."""
    folder = tmp_path / "run"
    interrupted_at(folder, tiny(**{"objective.layer": 1}), 3)
    killed = subprocess.run([sys.executable, "-c", KILLED, folder], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert {p.name for p in folder.glob("means-*")} == {
        "means-3.safetensors",
        "means-4.safetensors",
    }
    Run.open(folder).execute()
    assert {p.name for p in folder.glob("means-*")} == {"means-4.safetensors"}


def test_killed_at_random_moments_it_ends_the_same(tmp_path: Path) -> None:
    """At least ten kills, some inside a write; then metrics and weights equal those of a run that
    was never stopped.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        Run(SPEC, tmp_path / "whole").execute()
    finally:
        torch.set_num_threads(threads)
    done = subprocess.run(
        [sys.executable, "-m", "tests.runs.victim", tmp_path / "killed", "7"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    kills, writing = map(int, done.stdout.split())
    assert kills >= 10
    assert writing >= 1
    assert same_run(tmp_path / "whole", tmp_path / "killed")
    a, b = (Run(SPEC, tmp_path / name).summary for name in ("whole", "killed"))
    assert a is not None
    assert b is not None
    assert {k: v for k, v in a.items() if k != "seconds"} == {
        k: v for k, v in b.items() if k != "seconds"
    }


def test_a_folder_may_be_text(tmp_path: Path) -> None:
    summary = Run(tiny(), f"{tmp_path}/run").execute()
    assert Run.open(f"{tmp_path}/run").summary == summary


def test_folder_holds_what_it_should(tmp_path: Path) -> None:
    spec = tiny(target=0.15)
    summary = Run(spec, tmp_path).execute(command="fedmix run digits")
    files = {"experiment.toml", "environment.json", "clients.json", "metrics.jsonl", "summary.json"}
    files |= {"checkpoint.safetensors", "gallery.safetensors", "means-1.safetensors"}
    assert {p.name for p in tmp_path.iterdir() if not p.name.startswith(".")} == files
    assert Experiment.load(tmp_path / "experiment.toml") == spec
    lines = metrics(tmp_path)
    accuracies = [line["accuracy"] for line in lines]
    assert [line["round"] for line in lines] == [1, 2, 3, 4]
    assert summary["last"] == accuracies[-1]
    assert summary["best"] == max(accuracies)
    assert summary["best_round"] == accuracies.index(max(accuracies)) + 1
    assert summary["mean_last_ten"] == pytest.approx(sum(accuracies) / 4)
    assert summary["rounds_to_target"] == next(
        (i + 1 for i, a in enumerate(accuracies) if a >= 0.15), None
    )
    assert json.loads((tmp_path / "environment.json").read_text())["command"] == "fedmix run digits"
    clients = json.loads((tmp_path / "clients.json").read_text())
    assert [sum(c) for c in clients["counts"]] == clients["sizes"]
    gallery = load_file(tmp_path / "gallery.safetensors")
    assert gallery["means"].shape == (10, 1, 8, 8)


def test_scores_by_client(tmp_path: Path) -> None:
    """Patients are spread over clients with test samples of their own: weighted by these, the
    scores give the pooled one.
    """
    values = {
        "data": {"name": "diabetes", "clients": 8}, "model": {"name": "mlp"},
        "objective": {"name": "fedavg"}, "training": {"clients_per_round": 3}, "rounds": 2,
    }  # fmt: skip
    spec = Experiment.of(values)
    summary = Run(spec, tmp_path).execute()
    clients = json.loads((tmp_path / "clients.json").read_text())
    tests = spec.build_data().held_out.clients
    assert tests is not None
    assert len(clients["scores"]) == len(clients["sizes"]) == 8
    weighted = (
        sum(s * n for s, n in zip(clients["scores"], tests.sizes, strict=True)) / tests.sizes.sum()
    )
    assert weighted == pytest.approx(summary["last"], rel=1e-6)
    Run(tiny(rounds=1), tmp_path / "digits").execute()  # whose test samples belong to nobody
    assert "scores" not in json.loads((tmp_path / "digits/clients.json").read_text())


def test_a_finished_run_is_not_run_again_but_can_be_made_longer(
    tmp_path: Path, whole: Path
) -> None:
    Run(tiny(rounds=2), tmp_path / "a").execute()
    rounds: list[int] = []
    Run(tiny(rounds=2), tmp_path / "a").execute(lambda line: rounds.append(line["round"]))
    assert rounds == []
    Run(tiny(rounds=4), tmp_path / "a").execute(lambda line: rounds.append(line["round"]))
    assert rounds == [3, 4]
    assert same_run(tmp_path / "a", whole)


def test_a_longer_run_that_is_killed_goes_on(tmp_path: Path, whole: Path) -> None:
    """Made longer and stopped half-way, it is unfinished: it goes on to its new end, and no shorter
    one takes its place.
    """
    Run(tiny(rounds=1), tmp_path).execute()
    interrupted_at(tmp_path, tiny(), 3)
    assert Run.open(tmp_path).experiment.rounds == 4
    with pytest.raises(
        BadInput, match="holds this run with 4 rounds, more than 1; ask for 4 or more"
    ):
        Run(tiny(rounds=1), tmp_path).execute()
    assert Run.open(tmp_path).execute()["rounds"] == 4
    assert same_run(tmp_path, whole)


def interrupted_at(folder: Path, spec: Experiment, stop: int) -> None:
    seen: list[int] = []
    with pytest.raises(Interrupted, match=f"stopped after round {stop}; go on with: fedmix resume"):
        Run(spec, folder).execute(
            lambda line: seen.append(line["round"]), stopped=lambda: seen[-1:] == [stop - 1]
        )


def test_a_torn_last_line_is_written_again(tmp_path: Path, whole: Path) -> None:
    interrupted_at(tmp_path, tiny(), 2)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"round": 3, "accu')
    Run(tiny(), tmp_path).execute()
    assert same_run(whole, tmp_path)


def test_a_missing_checkpoint_starts_anew_and_ends_the_same(tmp_path: Path, whole: Path) -> None:
    interrupted_at(tmp_path, tiny(), 3)
    (tmp_path / "checkpoint.safetensors").unlink()
    Run(tiny(), tmp_path).execute()
    assert same_run(whole, tmp_path)


def test_lost_metrics_are_noticed(tmp_path: Path) -> None:
    interrupted_at(tmp_path, tiny(), 2)
    (tmp_path / "metrics.jsonl").write_text("")
    before = (tmp_path / "checkpoint.safetensors").read_bytes()
    with pytest.raises(BadInput, match="lacks some of the 2 rounds before the checkpoint"):
        Run(tiny(), tmp_path).execute()
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    interrupted_at(tmp_path, tiny(), 2)
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(
        BadInput,
        match=r"checkpoint\.safetensors is damaged .*; delete checkpoint.safetensors to start",
    ):
        Run(tiny(), tmp_path).execute()


def test_released_means_are_written_once_a_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FedMix on inputs exchanges once; on hidden states every round, and only the last version
    stays.
    """
    written: list[str] = []

    def noting(path: Path, content: bytes) -> None:
        written.append(path.name)
        files.write_whole(path, content)

    monkeypatch.setattr(checkpoint, "write_whole", noting)
    interrupted_at(tmp_path / "once", tiny(), 2)
    Run(tiny(), tmp_path / "once").execute(checkpoint_seconds=0.0)
    assert written.count("means-1.safetensors") == 1
    assert written.count("checkpoint.safetensors") == 3
    assert written.index("means-1.safetensors") < written.index("checkpoint.safetensors")
    written.clear()
    Run(tiny(**{"objective.layer": 1}), tmp_path / "hidden").execute(checkpoint_seconds=0.0)
    assert [name for name in written if "means" in name or "checkpoint" in name] == [
        name
        for version in (1, 2, 3, 4)
        for name in (f"means-{version}.safetensors", "checkpoint.safetensors")
    ]
    assert [p.name for p in (tmp_path / "hidden").glob("means-*")] == ["means-4.safetensors"]
    assert (
        not set(checkpoint.RELEASED)
        & load_file(tmp_path / "hidden" / "checkpoint.safetensors").keys()
    )


def test_killed_between_means_and_checkpoint(tmp_path: Path) -> None:
    """The checkpoint names the means it goes with: a later version beside it is written again, an
    earlier one removed.
    """
    spec = tiny(**{"objective.layer": 1})
    Run(spec, tmp_path / "whole").execute()
    interrupted_at(tmp_path / "killed", spec, 2)
    (tmp_path / "killed" / "means-3.safetensors").write_bytes(
        b"of a process that died before its checkpoint"
    )
    (tmp_path / "killed" / "means-1.safetensors").write_bytes(
        b"of a process that died after its checkpoint"
    )
    Run(spec, tmp_path / "killed").execute()
    assert same_run(tmp_path / "whole", tmp_path / "killed")


def test_lost_means_are_named(tmp_path: Path) -> None:
    interrupted_at(tmp_path, tiny(), 2)
    (tmp_path / "means-1.safetensors").unlink()
    with pytest.raises(
        BadInput,
        match=r"means-1\.safetensors is damaged .*; delete checkpoint.safetensors to start this "
        r"run anew",
    ):
        Run(tiny(), tmp_path).execute()


def test_a_changed_spec_is_refused(tmp_path: Path) -> None:
    interrupted_at(tmp_path, tiny(), 2)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}
    (tmp_path / "experiment.toml").write_text(tiny(**{"objective.lam": 0.2}).toml())
    with pytest.raises(BadInput, match="is not the one that its checkpoint was made with"):
        Run.open(tmp_path).execute()
    for name in ("checkpoint.safetensors", "metrics.jsonl"):
        assert (tmp_path / name).read_bytes() == before[name]


def test_another_experiment_does_not_overwrite(tmp_path: Path) -> None:
    Run(tiny(rounds=1), tmp_path).execute()
    for gone in ("", "summary.json", "checkpoint.safetensors"):
        if gone:
            (tmp_path / gone).unlink()
        with pytest.raises(
            BadInput, match=r"holds another experiment \(objective.lam is 0.05 there and 0.2 here\)"
        ):
            Run(tiny(rounds=1, **{"objective.lam": 0.2}), tmp_path).execute()


def test_a_finished_run_whose_spec_was_edited_says_so(tmp_path: Path) -> None:
    Run(tiny(rounds=1), tmp_path).execute()
    (tmp_path / "experiment.toml").write_text(tiny(rounds=1, **{"objective.lam": 0.2}).toml())
    with pytest.raises(BadInput, match="is not the one that its summary was made with"):
        Run.open(tmp_path).execute()


def test_scores_that_are_not_finite_stay_valid_json() -> None:
    """A model that overflows only in evaluation: null in the files, and still a summary."""
    lines = [
        {"round": r, "mse": m, "seconds": 1.0, "bytes_up": 0, "bytes_down": 0}
        for r, m in ((1, 0.5), (2, None), (3, 0.25))
    ]
    summary = summarise(lines, "digits", "fedmix", None)
    assert (summary["best"], summary["best_round"], summary["last"], summary["mean_last_ten"]) == (
        0.25,
        3,
        0.25,
        None,
    )
    only = summarise([lines[1]], "digits", "fedmix", None)
    assert (only["best"], only["best_round"], only["last"]) == (None, None, None)


def test_a_summary_states_its_guarantee(tmp_path: Path) -> None:
    none = Run(tiny(rounds=1), tmp_path / "none").execute()
    assert (none["privacy"], none["epsilon"]) == (
        "None: the means carry no noise (exchange.noise).",
        None,
    )
    settings = {"rounds": 2, "exchange.clip": 4.0, "exchange.noise": 0.5}
    some = Run(tiny(**settings), tmp_path / "some").execute()
    assert (some["releases"], some["delta"]) == (1, 1e-5)
    assert some["epsilon"] > 0
    assert some["privacy"].endswith(f"Weights, sizes and who takes part are not covered.{SEEDED}")
    assert load_runs([tmp_path / "some"])[0].privacy == some["privacy"]


def test_a_folder_in_which_nothing_was_begun_goes(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for begun in (False, True):
        folder.mkdir()
        with contextlib.suppress(BadInput), locked(folder):
            if begun:
                (folder / "experiment.toml").touch()
            raise BadInput("refused")
        assert folder.exists() == begun
    shutil.rmtree(folder)
    folder.mkdir()
    with locked(folder):
        shutil.rmtree(folder)  # which is no reason to fail at the end


def test_folders_that_were_made_for_nothing_go_and_others_stay(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    with pytest.raises(BadInput, match="device 'tpu' cannot be used"):
        Run(tiny().with_settings({"engine.device": "tpu"}), there / "runs" / "one").execute()
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]


def test_a_device_is_tried_before_data_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Experiment, "build_data", lambda *_: pytest.fail("data were fetched"))
    with pytest.raises(BadInput, match="device 'tpu' cannot be used"):
        Run(tiny().with_settings({"engine.device": "tpu"}), tmp_path / "one").execute()


def test_a_second_process_is_kept_out(tmp_path: Path) -> None:
    def second(_: dict[str, Any]) -> None:
        with pytest.raises(BadInput, match="another process is running in"):
            Run(tiny(), tmp_path).execute()

    Run(tiny(rounds=1), tmp_path).execute(second)


def test_a_read_only_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(runs, "write_whole", refuse)
    with pytest.raises(
        BadInput, match=r"cannot be written \(Permission denied\); choose another folder$"
    ):
        Run(tiny(), tmp_path / "there").execute()
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="cannot be written"):
        Run(tiny(), tmp_path / "file" / "run").execute()


def test_a_full_disk_loses_nothing(tmp_path: Path, whole: Path) -> None:
    """A tmpfs that fills up in mid-run: a clear sentence; with room again, the run goes on and ends
    the same.
    """
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True
    ).returncode:
        pytest.skip("mounting a small tmpfs needs root")
    try:
        folder, ballast = disk / "run", disk / "ballast"

        def fill(line: dict[str, Any]) -> None:
            if line["round"] == 2:
                with contextlib.suppress(OSError):
                    ballast.write_bytes(b"x" * 2**20)

        with pytest.raises(
            FedmixError, match=r"the disk of .* is full; make room and start the same again"
        ):
            Run(tiny(), folder).execute(fill, checkpoint_seconds=0.0)
        ballast.unlink()
        Run(tiny(), folder).execute(checkpoint_seconds=0.0)
        assert same_run(folder, whole)
    finally:
        subprocess.run(["umount", disk], check=True)


def test_ctrl_c_ends_the_round_and_says_how_to_go_on(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "fedmix.cli.app",
        "run",
        "digits",
        "--rounds",
        "200",
        "--set",
        "data.local_share=0.2",
        "--out",
        str(tmp_path),
    ]
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "300"},
    ) as process:
        for _ in range(600):
            time.sleep(0.1)
            found = list(tmp_path.glob("*/metrics.jsonl"))
            if found and found[0].read_text().count("\n") >= 2:
                break
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    [folder] = tmp_path.iterdir()
    assert "finishing this round" in said
    assert f"go on with: fedmix resume {folder}" in said
    state = load_file(folder / "checkpoint.safetensors")
    assert int(state["round"]) == len(metrics(folder))
