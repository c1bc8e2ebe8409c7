"""The command line, as a user types it."""

import json
import math
import os
import pty
import re
import shlex
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from fedmix import BadInput, __version__
from fedmix.cli.app import main
from fedmix.core.errors import FedmixWarning
from fedmix.experiment.presets import experiment
from fedmix.experiment.spec import settings
from fedmix.experiment.sweep import experiments
from fedmix.privacy import NoisySums
from fedmix.privacy.accounting import gaussian_epsilon, upwards
from tests.report.folders import run_folder, spec

SMALL = ["--rounds", "2", "--set", "training.epochs=1", "--set", "data.local_share=0.2"]


def fedmix(monkeypatch: pytest.MonkeyPatch, *args: object, columns: int = 200) -> int:
    """Run the command line in this process; its exit code."""
    monkeypatch.setattr(sys, "argv", ["fedmix", *map(str, args)])
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert fedmix(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"fedmix {__version__}\n"


def test_a_warning_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = warnings.formatwarning
    monkeypatch.setattr(warnings, "formatwarning", usual)  # to have it back
    assert fedmix(monkeypatch, "--version") == 0
    assert (
        warnings.formatwarning("going on without", FedmixWarning, __file__, 1)
        == "fedmix: going on without\n"
    )
    assert warnings.formatwarning("a", UserWarning, __file__, 1) == usual(
        "a", UserWarning, __file__, 1
    )


def test_letters_that_a_pipe_does_not_have() -> None:
    command = [sys.executable, "-m", "fedmix", "privacy", "--clip", "4", "--epsilon", "1"]
    done = subprocess.run(
        command, capture_output=True, env=os.environ | {"PYTHONIOENCODING": "ascii"}
    )
    assert done.returncode == 0, done.stderr
    assert b"? = 1" in done.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_result_that_finds_no_space(unbuffered: str) -> None:
    command, env = (
        [sys.executable, "-m", "fedmix", "data", "list", "--json"],
        os.environ | {"PYTHONUNBUFFERED": unbuffered},
    )
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=env)
    assert (
        done.stderr
        == "fedmix: no space is left where the result goes; free some and run the same again\n"
    )
    assert done.returncode == 1


def test_a_reader_that_has_seen_enough() -> None:
    """As `| head -1` is; what it did not read is no mistake to tell."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        command = [sys.executable, "-m", "fedmix", "data", "list", "--json"]
        done = subprocess.run(
            command,
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": ""},
        )
    assert (done.stderr, done.returncode) == ("", 1)


def test_nobody_listens() -> None:
    """As in a job of cron whose output is closed."""
    command = f"{shlex.quote(sys.executable)} -m fedmix data list --json >&-"
    done = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True)
    assert (done.stderr, done.returncode) == ("", 0)


@pytest.mark.parametrize(
    "args",
    [["run", "digits", "--out"], ["report"], ["resume"], ["pack", ".", "-o"], ["compare", "--csv"]],
)
def test_a_name_that_no_file_can_have(
    args: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_folder(tmp_path / "one", spec(rounds=2))
    monkeypatch.chdir(tmp_path)
    assert fedmix(monkeypatch, *args, "x" * 300) == 2
    assert capsys.readouterr().err == f"fedmix: the name {'x' * 20}... is too long for a file\n"
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_a_place_for_no_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedmix(monkeypatch, "run", "digits", *SMALL, "--out", "/proc/nowhere") == 2
    assert "cannot be written (" in capsys.readouterr().err


def test_run_prints_a_table_and_leaves_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        fedmix(monkeypatch, "run", "digits", "--algorithm", "naivemix", *SMALL, "--out", tmp_path)
        == 0
    )
    out, err = capsys.readouterr()
    [folder] = tmp_path.iterdir()
    assert folder.name.startswith("digits-naivemix-s0-")
    assert "naivemix" in out
    assert str(folder) in out.replace("\n", "")
    assert re.search(
        r"digits naivemix seed 0  round 2/2  accuracy .* %  loss [\d.]+  [\d.]+ clients/s", err
    )
    assert "\x1b[" not in err


def test_a_narrow_terminal_cuts_no_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["run", "digits", *SMALL, "--out", tmp_path]
    assert fedmix(monkeypatch, *run, columns=30) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith(" fedmix"))
    assert len(row.split()) == 9  # a label, how many runs, and seven figures


def test_json_for_scripts_and_done_runs_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["run", "digits", *SMALL, "--out", tmp_path, "--seeds", "2", "--json"]
    assert fedmix(monkeypatch, *args) == 0
    out, err = capsys.readouterr()
    first = json.loads(out)
    assert err == ""
    assert len(first) == 2
    assert all(s["rounds"] == 2 for s in first.values())
    stamps = {p: p.stat().st_mtime_ns for p in tmp_path.glob("*/checkpoint.safetensors")}
    assert fedmix(monkeypatch, *args) == 0
    assert json.loads(capsys.readouterr().out) == first
    assert stamps == {p: p.stat().st_mtime_ns for p in tmp_path.glob("*/checkpoint.safetensors")}


def test_a_sweep_is_the_product_of_its_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = ["--set", "objective.lam=0.05,0.2", "--set", "exchange.m=all,5"]
    assert fedmix(monkeypatch, "run", "digits", *SMALL, *sweep, "--out", tmp_path, "--json") == 0
    assert len(json.loads(capsys.readouterr().out)) == 4
    texts = [(p / "experiment.toml").read_text() for p in tmp_path.iterdir()]
    assert sorted("lam = 0.2" in t for t in texts) == [False, False, True, True]
    assert sorted("m = 5" in t for t in texts) == [False, False, True, True]


def test_a_failed_run_loses_none_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The middle one diverges at once; it is told at the end, and the others have finished."""
    args = [
        "run",
        "digits",
        *SMALL,
        "--set",
        "training.lr=0.01,1e30,0.02",
        "--out",
        tmp_path,
        "--quiet",
    ]
    assert fedmix(monkeypatch, *args) == 1
    _, err = capsys.readouterr()
    assert re.search(
        r"1 of 3 runs failed:\n  digits-fedmix-logits-s0-\w+: round 1, client \d+, step \d+: "
        r"the loss is NaN or infinite",
        err,
    )
    assert len(list(tmp_path.glob("*/summary.json"))) == 2


def test_compare_writes_what_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [
        a for kind in ("png", "svg", "csv", "html") for a in (f"--{kind}", tmp_path / f"it.{kind}")
    ]
    args = [
        "compare",
        "digits",
        "--algorithms",
        "fedavg,fedmix",
        "--seeds",
        "2",
        *SMALL,
        "--out",
        tmp_path / "runs",
        "--quiet",
        *files,
    ]
    assert fedmix(monkeypatch, *args) == 0
    out = capsys.readouterr().out
    assert "fedavg" in out
    assert "fedmix" in out
    assert (tmp_path / "it.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "it.svg").read_text()
    assert len((tmp_path / "it.csv").read_text().splitlines()) == 3
    assert "</html>" in (tmp_path / "it.html").read_text()
    again = [a for kind in ("svg", "csv") for a in (f"--{kind}", tmp_path / f"again.{kind}")]
    assert (
        fedmix(monkeypatch, "report", tmp_path / "runs", "-o", tmp_path / "again.html", *again) == 0
    )
    assert (tmp_path / "again.html").stat().st_size > 10_000
    for kind in ("svg", "csv"):
        assert (tmp_path / f"again.{kind}").read_text() == (tmp_path / f"it.{kind}").read_text()


def test_compare_sets_what_an_algorithm_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """λ and the exchange are FedMix's alone: FedAvg runs once, FedMix for each value."""
    args = [
        "--algorithms",
        "fedavg,fedmix",
        "--seeds",
        "1",
        "--set",
        "objective.lam=0.1,0.2",
        "--set",
        "exchange.noise=0.1",
    ]
    assert fedmix(monkeypatch, "compare", "digits", *args, *SMALL, "--out", tmp_path, "--json") == 0
    assert sorted(Path(f).name.split("-")[1] for f in json.loads(capsys.readouterr().out)) == [
        "fedavg",
        "fedmix",
        "fedmix",
    ]


def test_compare_keeps_what_a_file_says_of_the_exchange(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(
        'rounds = 1\n[data]\nname = "digits"\n[model]\nname = "digits_cnn"\n[objective]\n'
        'name = "fedmix"\nlam = 0.3\n'
        "[exchange]\nm = 8\nnoise = 0.05\n[training]\nclients_per_round = 3\n"
    )
    args = [
        "--algorithms",
        "fedavg,naivemix,fedmix",
        "--seeds",
        "1",
        "--out",
        tmp_path / "runs",
        "--json",
        "--csv",
        tmp_path / "t.csv",
    ]
    assert fedmix(monkeypatch, "compare", mine, *args) == 0
    specs = {
        Path(f).name.split("-")[1]: (Path(f) / "experiment.toml").read_text()
        for f in json.loads(capsys.readouterr().out)
    }
    assert "noise" not in specs["fedavg"]
    assert all("m = 8" in specs[a] and "noise = 0.05" in specs[a] for a in ("naivemix", "fedmix"))
    assert "lam = 0.3" in specs["fedmix"]


def test_another_name_brings_other_fields(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["--set", "objective.name=naivemix", "--set", "objective.lam=0.3"]
    assert fedmix(monkeypatch, "run", "digits", *args, *SMALL, "--out", tmp_path, "--json") == 0
    [folder] = json.loads(capsys.readouterr().out)
    assert "digits-naivemix-" in folder


def test_none_takes_a_setting_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Global Mixup's preset draws λ from Beta(alpha, alpha), which does not go with a fixed one."""
    args = [
        "run",
        "digits",
        "--algorithm",
        "globalmix",
        "--set",
        "objective.lam=0.2",
        *SMALL,
        "--out",
        tmp_path,
    ]
    assert fedmix(monkeypatch, *args, "--set", "objective.alpha=none", "--json") == 0
    [folder] = json.loads(capsys.readouterr().out)
    spec = (Path(folder) / "experiment.toml").read_text()
    assert "lam = 0.2" in spec
    assert "alpha" not in spec
    assert fedmix(monkeypatch, *args, "--set", "training.lr=None", "--quiet") == 2
    assert "training.lr=None should be a valid number" in capsys.readouterr().err


def test_tensorboard_gets_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["run", "digits", *SMALL, "--out", tmp_path, "--quiet", "--track", "tensorboard"]
    assert fedmix(monkeypatch, *command) == 0
    [folder] = tmp_path.iterdir()
    code = (
        "import sys; from tensorboard.backend.event_processing.event_accumulator import "
        "EventAccumulator as E; "
        "e = E(sys.argv[1]); e.Reload(); print([(s.step, round(s.value, 4)) for s in "
        "e.Scalars('accuracy')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, folder / "tensorboard"], capture_output=True, text=True
    )
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert done.stdout.strip() == str(
        [(line["round"], round(line["accuracy"], 4)) for line in lines]
    ), done.stderr


def test_tensorboard_writes_nothing_without_a_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", "digits", *SMALL, "--quiet", "--track", "tensorboard", "--out"]
    assert fedmix(monkeypatch, *command, tmp_path / "runs", "--set", "data.clients=3000") == 2
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    assert fedmix(monkeypatch, *command, tmp_path / "file") == 2
    assert "cannot be written (Not a directory); choose another folder" in capsys.readouterr().err
    assert fedmix(monkeypatch, *command, tmp_path) == fedmix(monkeypatch, *command, tmp_path) == 0
    assert len(list(tmp_path.glob("digits-*/tensorboard/*"))) == 1


def test_resume_adds_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """To one run once, however often its folder is named, and whatever it is called."""
    assert fedmix(monkeypatch, "run", "digits", *SMALL, "--out", tmp_path, "--json") == 0
    [folder] = tmp_path.iterdir()
    capsys.readouterr()
    assert fedmix(monkeypatch, "resume", folder, "--rounds", "3", "--json") == 0
    assert json.loads(capsys.readouterr().out)[str(folder)]["rounds"] == 3
    again = folder.parent / ".." / tmp_path.name / folder.name
    assert (
        fedmix(
            monkeypatch, "resume", again, folder, folder, "--rounds", "4", "--json", "--jobs", "2"
        )
        == 0
    )
    assert [done["rounds"] for done in json.loads(capsys.readouterr().out).values()] == [4]


def test_resume_goes_on_with_all_of_a_folder_that_are_not_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One run is done, one has lost its last round, one diverged, one is damaged, one is that of a
    script that is done and one that of a script that is not.
    """
    args = ["run", "digits", "--algorithm", "fedavg", *SMALL, "--out", tmp_path, "--quiet"]
    assert fedmix(monkeypatch, *args, "--seeds", 4) == 0
    assert fedmix(monkeypatch, *args, "--set", "training.lr=1e30") == 1
    [diverged] = (path.parent for path in tmp_path.glob("*/failure.json"))
    seeds = [next(tmp_path.glob(f"digits-fedavg-s{seed}-*/summary.json")) for seed in range(4)]
    done, longer, script, damaged = (path.parent for path in seeds)
    (damaged / "experiment.toml").write_text("rounds = ")
    text = (script / "experiment.toml").read_text()
    (script / "experiment.toml").write_text(f"{text}\n[recorded]\nsamples = 'a'\n")
    text = (longer / "experiment.toml").read_text()
    (longer / "experiment.toml").write_text(text.replace("rounds = 2", "rounds = 3"))
    before = {path: path.stat().st_mtime_ns for path in (done, diverged, script)}
    capsys.readouterr()
    assert fedmix(monkeypatch, "resume", tmp_path) == 1
    out, err = capsys.readouterr()
    assert f"{script.name}  done before" in err
    assert f"{diverged.name}  diverged in round 1 before: " in err
    assert "[1/2] fedavg rounds=2 seed 0  done before" in err
    assert "[2/2] fedavg rounds=3 seed 1  goes on after round 2/3" in err
    assert f"fedmix: 1 of 3 runs failed:\n  {damaged.name}: " in err
    assert str(longer) in out
    assert json.loads((longer / "summary.json").read_text())["rounds"] == 3
    assert before == {path: path.stat().st_mtime_ns for path in before}
    (script / "summary.json").unlink()
    assert fedmix(monkeypatch, "resume", script, done, "--json") == 1
    out, err = capsys.readouterr()
    assert list(json.loads(out)) == [str(done)]
    assert "which that script alone can make; run the script again" in err


def test_a_file_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(
        'rounds = 2\nseed = 3\n[data]\nname = "diabetes"\n[model]\nname = "mlp"\n[objective]\n'
        'name = "fedmix"\nlam = 0.1\n'
        "[training]\nclients_per_round = 3\n"
    )
    assert fedmix(monkeypatch, "run", mine, "--out", tmp_path / "runs", "--json") == 0
    [summary] = json.loads(capsys.readouterr().out).values()
    assert summary["score_name"] == "mse"
    assert (
        fedmix(
            monkeypatch,
            "run",
            mine,
            "--seed",
            "5",
            "--seeds",
            "2",
            "--out",
            tmp_path / "other",
            "--json",
        )
        == 0
    )
    assert sorted(Path(f).name.split("-")[2] for f in json.loads(capsys.readouterr().out)) == [
        "s5",
        "s6",
    ]


UNFINISHED = (
    'rounds = 0\nseed = 3\n[data]\nname = "digits"\n[model]\nname = "digits_cnn"\n[objective]\n'
    'lam = 0.3\nscale = "algorithm"\n'
    "[training]\nclients_per_round = 3\n"
)


def test_a_file_is_validated_with_what_is_set(tmp_path: Path) -> None:
    """The file lacks an objective's name and has no rounds; both are given, and one of its own
    values is swept.
    """
    mine = tmp_path / "mine.toml"
    mine.write_text(UNFINISHED)
    found = experiments(
        str(mine),
        [None],
        None,
        None,
        2,
        ["rounds=2", "objective.name=fedmix", "training.clients_per_round=3,4"],
    )
    told = [
        (e.rounds, e.objective.lam, e.objective.scale, e.training.clients_per_round, e.seed)
        for e in found
    ]
    assert told == [(2, 0.3, "algorithm", k, seed) for k in (3, 4) for seed in (3, 4)]
    swept = experiments(
        "digits", [None], 2, None, 1, ["objective.name=fedavg,fedmix", "objective.lam=0.2"]
    )
    assert [one.algorithm for one in swept] == ["fedavg", "fedmix"]
    both = experiments(
        str(mine), ["fedavg", "naivemix"], 2, None, 1, ["objective.lam=0.2", "exchange.m=5"]
    )
    assert [(e.algorithm, e.exchange and e.exchange.m) for e in both] == [
        ("fedavg", None),
        ("naivemix", 5),
    ]


@pytest.mark.parametrize(
    ("settings", "rounds", "said"),
    [
        (
            ["objective.name=fedmix"],
            None,
            "mine.toml: rounds=0 should be greater than or equal to 1",
        ),
        (
            ["objective.name=fedmix"],
            -1,
            "command line: rounds=-1 should be greater than or equal to 1",
        ),
        (
            ["objective.name=fedmix", "data.clients=x"],
            None,
            "--set: data.clients='x' should be .*; mine.toml: rounds=0 should",
        ),
        (
            ["objective.name=fedmix", "training.lr=0.0"],
            1,
            "--set: training.lr=0.0 must be positive",
        ),
        (
            ["objective.name=fedmix", "objective.lam=2.0"],
            1,
            "mine.toml with --set and command line: .*lam=2.0 is outside",
        ),
        (
            ["training.epochs=2"],
            1,
            "mine.toml with --set and command line: objective.name is missing",
        ),
        (
            ["objective.name=fedmx"],
            1,
            "--set: objective.name='fedmx' is unknown; did you mean fedmix?",
        ),
        (
            ["rounds.x=1", "objective.name=fedmix"],
            None,
            "rounds.x: rounds is a value, not a section",
        ),
    ],
)
def test_a_mistake_is_said_to_be_of_the_file_or_of_the_command_line(
    settings: list[str],
    rounds: int | None,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(UNFINISHED)
    with pytest.raises(BadInput, match=f"^{said}"):
        experiments("mine.toml", [None], rounds, None, 1, settings)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["run", "mnist"], "preset 'mnist' is unknown; did you mean femnist? Known are cifar10"),
        (
            ["data", "show", "diabetes"],
            "shakespeare, or give a file with [data] name = 'diabetes'",
        ),  # which `data list` names
        (["run", "digits", "--algorithm", "fedsgd"], "algorithm 'fedsgd' is unknown"),
        (
            ["run", "digits", "--set", "objective.lamb=1"],
            "objective.lamb=1 is not a setting; did you mean objective.lam?",
        ),
        (
            ["run", "digits", "--set", "foo.bar=3"],
            "--set: foo.bar=3 is not a setting; known are data, model",
        ),
        (
            ["run", "digits", "--algorithm", "globalmix", "--set", "objective.lam=0.05"],
            "or a fixed lam; objective.alpha=none (alpha=None in Python) takes the drawn one away",
        ),
        (["run", "digits", "--set", "lam"], "is not KEY=VALUE"),
        (["run", "digits", "--seeds", "0"], "--seeds 0: at least one"),
        (
            ["run", "digits", "--set", "training.clients_per_round=50"],
            "is more than the 20 clients",
        ),
        (
            ["run", "digits", "--set", "training.clients_per_round=50,60"],
            "clients_per_round=50 is more than the 20 clients",
        ),
        (
            ["run", "digits", "--set", "training.clients_per_round=5,50"],
            "clients_per_round=50 is more than the 20 clients",
        ),
        (
            ["run", "cifar10", "--set", "data.normalise=foo"],
            "--set: data.normalise='foo' should be 'standard' or 'unit'",
        ),
        (
            ["run", "cifar10", "--set", "data.partition=wild", "--data", "nowhere"],
            "--set: data.partition='wild' should be",
        ),
        (
            ["run", "digits", "--set", "exchange.cutoff=1000"],
            "exchange.cutoff=1000 leaves no client",
        ),
        (
            ["run", "digits", "--device", "gpu"],
            " ...); choose 'cpu', or 'cuda' where there is a GPU",
        ),
        (["run", "digits", "--device", "tpu"], "device 'tpu' cannot be used"),
        (["run", "digits", "--device", "meta"], "device 'meta' cannot be used"),
        (
            ["run", "digits", "--engine", "fast"],
            "engine.name='fast' should be 'vectorised' or 'sequential'",
        ),
        (["run", "gone.toml"], "gone.toml cannot be read"),
        (["resume", "nowhere"], "nowhere cannot be read (No such file or directory)"),
        (["resume", "circle"], "circle cannot be read (Too many levels of symbolic links)"),
        (["resume", "."], ". holds no run: there is no experiment.toml"),
        (["report", "nowhere"], "nowhere"),
        (
            ["compare", "digits", "--set", "objective.lamb=1"],
            "objective.lamb=1 is not a setting; did you mean objective.lam?",
        ),
        (
            ["compare", "digits", "--png", "gone/a.png"],
            "gone/a.png cannot be written: there is no folder gone",
        ),
        (
            ["compare", "digits", "--png", "a.pdf"],
            "a.pdf: a picture can be written as .png or .svg",
        ),
        (
            ["privacy", "--clip", "4", "--epsilon", "1", "--png", "a.pdf"],
            "a.pdf: a picture can be written as .png or .svg",
        ),
        (
            ["report", "nowhere", "--png", "a.svg"],
            "a.svg: --png writes a picture that ends in .png",
        ),
        (
            ["report", "nowhere", "--svg", "a.png"],
            "a.png: --svg writes a picture that ends in .svg",
        ),
        (
            ["compare", "digits", "--rounds", "1", "--html", "a.PNG"],
            "a.PNG: what is written there is no picture",
        ),
        (["report", "nowhere", "--csv", "a.svg"], "a.svg: what is written there is no picture"),
        (["report", "nowhere", "--csv", "report.html"], "report.html is to be written twice"),
        (["report", "nowhere", "--csv", "a", "--output", "here/a"], "a is to be written twice"),
        (["compare", "digits", "--html", "."], ". cannot be written: it is a folder; name a file"),
        (["compare", "digits", "--algorithms", ","], "--algorithms names none"),
        (
            ["run", "digits", "--set", "objective.lam=0.1", "--set", "objective.lam=0.2"],
            "--set objective.lam is given twice",
        ),
        (
            ["run", "digits", "--set", "engine.processes=1,2"],
            "--set: engine.processes=1 and engine.processes=2 are the same run",
        ),
        (
            ["run", "digits", "--set", "objective.name=fedmix,fedmix"],
            "objective.name=fedmix are the same run (fedmix)",
        ),
        (
            ["run", "digits", "--set", "objective.lam=0.1,0.10"],
            "--set: objective.lam=0.1 and objective.lam=0.1 are the same run",
        ),
        (
            ["data", "show", "digits", "--set", "data.clients=5,6"],
            "--set data.clients has several values",
        ),
        (
            ["federation", "run", "digits", "--set", "training.lr=0.1,0.2"],
            "--set training.lr has several values",
        ),
        (
            ["run", "digits", "--seeds", "2", "--set", "seed=5"],
            "--set seed and --seeds contradict each other",
        ),
        (
            ["run", "digits", "--set", "rounds=2", "--rounds", "3"],
            "rounds is given by --set and by an option of its own; leave one of them out",
        ),
        (
            ["run", "digits", "--rounds", "1" + 20 * "0"],
            "rounds=100000000000000000000 has more than 64 bits; give a smaller number",
        ),
        (
            ["run", "digits", "--rounds", "1", "--seed", "1" + 20 * "0"],
            "seed=100000000000000000000 has more than 64 bits",
        ),
        (
            ["run", "digits", "--set", "objective.mu=inf"],
            "objective.mu=inf should be a finite number",
        ),
        (
            ["run", "shakespeare", "--set", "model.hidden=-1", "--data", "nowhere"],
            "there are no parquet files",
        ),
        (["data", "fetch", "mnist"], "data 'mnist' is unknown"),
        (
            ["data", "fetch", "own", "--data", "."],
            "[data] name='own' stands for samples that every client loads by itself",
        ),
        (
            ["federation", "keys", "circle"],
            "circle cannot be written (File exists); choose another folder",
        ),
        (["run", "cifar10", "--data", "nowhere"], "there are no parquet files in"),
        (["run", "cifar10", "--data", "nowhere", "--seeds", "2"], "there are no parquet files in"),
        (
            ["run", "cifar10", "--data", "nowhere", "--seeds", "2", "--jobs", "2"],
            "there are no parquet files in",
        ),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    args: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("circle").symlink_to("circle")
    Path("here").symlink_to(".")
    out = ["--out", tmp_path / "runs"] if args[0] == "run" else []
    assert fedmix(monkeypatch, *args, *out) == 2
    err = capsys.readouterr().err
    assert err.startswith("fedmix: ")
    assert said in err
    assert len(err.strip().splitlines()) == 1
    assert all(path.is_symlink() for path in tmp_path.iterdir())  # which were there before


def test_data_commands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert fedmix(monkeypatch, "data", "list", "--json") == 0
    assert set(json.loads(capsys.readouterr().out)) == {
        "digits",
        "diabetes",
        "cifar10",
        "cifar100",
        "femnist",
        "own",
        "shakespeare",
    }
    assert fedmix(monkeypatch, "data", "fetch", "digits") == 0
    assert "digits: " in capsys.readouterr().out
    assert fedmix(monkeypatch, "data", "show", "digits", "--json") == 0
    shown: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert all(sum(n > 0 for n in c) == 2 for c in shown["counts"])
    assert fedmix(monkeypatch, "data", "show", "digits") == 0
    assert "digits: 20 clients" in capsys.readouterr().out


def test_data_list_says_what_is_here(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """1 MiB of two downloaded files, and CIFAR-10 as it was decoded from made-up files."""
    monkeypatch.setenv("FEDMIX_CACHE", str(tmp_path))
    assert fedmix(monkeypatch, "data", "fetch", "cifar10", "--data", tiny) == 0
    decoded = sum(path.stat().st_size for path in tmp_path.glob("cifar10-*/*"))
    record = tmp_path / "hub" / "flwrlabs" / "femnist" / "default" / "train.json"
    record.parent.mkdir(parents=True)
    halves = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for half in halves:
        half.write_bytes(bytes(2**19))
    record.write_text(json.dumps({str(half): 2**19 for half in halves}))
    capsys.readouterr()
    assert fedmix(monkeypatch, "data", "list", "--json") == 0
    said = {
        name: (about["downloaded_bytes"], about["decoded_bytes"])
        for name, about in json.loads(capsys.readouterr().out).items()
    }
    assert decoded > 0
    assert {name: sizes for name, sizes in said.items() if any(sizes)} == {
        "cifar10": (0, decoded),
        "femnist": (2**20, 0),
    }
    assert fedmix(monkeypatch, "data", "list") == 0
    lines = capsys.readouterr().out.splitlines()
    below = {line.split()[0]: lines[i + 1].strip() for i, line in enumerate(lines[:-1])}
    assert below["femnist"] == "here: 1.0 MiB downloaded"
    assert below["shakespeare"] == "here: nothing yet"
    assert lines[-1] == f"decoded data are in {tmp_path}"


def test_settings_are_listed_with_types_defaults_and_meanings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedmix(monkeypatch, "settings", "training.lr_decay") == 0
    assert capsys.readouterr().out.splitlines()[3:5] == [
        "training.lr_decay  number; 1.0",
        "    The learning rate is multiplied by this after every round.",
    ]
    assert fedmix(monkeypatch, "settings", "data.clients", columns=60) == 0
    out = capsys.readouterr().out
    assert "data.clients  integer; 60 (cifar10, shakespeare), 100" in out
    assert "20 (digits)" in out
    assert max(map(len, out.splitlines())) <= 60
    assert fedmix(monkeypatch, "settings", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert {(one["path"], one["of"]) for one in told} == {(p, of) for p, _, _, of in settings()}
    [lr] = [one for one in told if one["path"] == "training.lr"]
    assert (lr["kind"], lr["default"]) == ("number", "0.01")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("runn", "has no command 'runn'; did you mean run? '"),
        ("data lst", "fedmix data has no command 'lst'; did you mean list? '"),
        ("xyz", "fedmix has no command 'xyz'; '"),
        ("run digit", "did you mean digits? Known are cifar10, "),
        ("run --algorithm fedmx", "algorithm 'fedmx' is unknown; did you mean fedmix? Known are "),
        ("compare --algorithms fedavg,hidden-naivmix", "did you mean naivemix? Known are "),
        ("reproduce mian", "table 'mian' is unknown; did you mean main? Known are main, "),
        ("reproduce main --rows fedmx", "has no row 'fedmx'; did you mean fedmix? Known are "),
        ("reproduce main --score bst", "--score 'bst' is unknown; did you mean best? "),
        ("data fetch cifar", "data 'cifar' is unknown; did you mean cifar10? Known are cifar10, "),
        ("bench steps --variants plane", "--variants 'plane' is unknown; did you mean plain? "),
        ("run --set lam=0.1", "lam=0.1 is not a setting; did you mean objective.lam?"),
        ("run --set clip=1", "did you mean exchange.clip or "),
        ("run --set train.lr=1", "train.lr=1 is not a setting; did you mean training.lr?"),
        ("run --set model.name=lenett", "is unknown; did you mean lenet? Known are charlstm, "),
        ("settings lam", "no setting begins with 'lam'; did you mean objective.lam?"),
        ("settings exchnge", "did you mean exchange?"),
        ("settings xyz", "no setting begins with 'xyz'; 'fedmix settings' lists all"),
    ],
)
def test_a_mistyped_name_is_understood(
    args: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedmix(monkeypatch, *args.split()) == 2
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1


def test_what_is_recommended_is_the_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("run", "compare"):
        assert fedmix(monkeypatch, command, "--help", columns=300) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert "fedmix is the form that the paper prints" in said
        assert "fedmix-logits" in said
    [default] = experiments("digits", [None], None, None, 1, [])
    assert default.algorithm == "fedmix-logits"
    assert default.objective.expand == "logits"


@pytest.mark.parametrize(
    "command",
    [
        ["run"],
        ["compare"],
        ["reproduce"],
        ["resume"],
        ["report"],
        ["settings"],
        ["data", "list"],
        ["data", "fetch"],
        ["data", "show"],
        [],
    ],
)
def test_help_holds_an_example(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedmix(monkeypatch, *command, "--help") == 0
    assert "Example" in capsys.readouterr().out


def test_without_its_packages_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['typer'] = None; from fedmix.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "fedmix: the command line needs typer; run: pip install 'fedmix[cli]'\n"


def test_help_starts_without_torch() -> None:
    code = (
        "import sys, fedmix.cli.app; sys.exit(any(m in sys.modules for m in ('torch', 'numpy', "
        "'pydantic', 'matplotlib')))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("plain", [True, False])
def test_a_terminal_gets_a_live_bar_and_no_color_is_respected(plain: bool, tmp_path: Path) -> None:
    """On a real (pseudo) terminal: the bar moves, and NO_COLOR leaves no colour codes."""
    env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "CI")} | {
        "TERM": "xterm-256color",
        "COLUMNS": "140",
    }
    if plain:
        env["NO_COLOR"] = "1"
    ours, theirs = pty.openpty()
    settings = [
        "--rounds",
        "2",
        "--set",
        "training.epochs=1",
        "--set",
        "data.clients=10",
    ]  # long enough to be seen
    command = [
        sys.executable,
        "-m",
        "fedmix.cli.app",
        "run",
        "digits",
        *settings,
        "--out",
        str(tmp_path),
    ]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=env) as process:
        os.close(theirs)
        seen, end = b"", time.monotonic() + 120
        while time.monotonic() < end:
            try:
                piece = os.read(ours, 65536)
            except OSError:
                break
            if not piece:
                break
            seen += piece
    os.close(ours)
    assert process.returncode == 0, seen
    text = seen.decode()
    assert "2/2" in text
    assert "accuracy" in text
    assert bool(re.search(r"\x1b\[[0-9;]*3[0-9]", text)) is not plain


def test_privacy_both_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Means of 50 with a bound of 4: Δ = 8/50. ε = 1 at δ = 1e-5 takes 3.7306 deviations (Balle &
    Wang 2018).
    """
    given = ["privacy", "--n", 50, "--clip", 4, "--json"]
    assert fedmix(monkeypatch, *given, "--epsilon", 1) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["noise"] == found["label_noise"] == pytest.approx(3.7306 * 8 / 50, rel=1e-4)
    assert found["epsilon"]["one sample replaced"] == pytest.approx(1.0)
    assert found["sensitivity"] == pytest.approx([8 / 50])
    assert fedmix(monkeypatch, *given, "--sigma", 3.7306 * 8 / 50, "--m", 5) == 0
    back = json.loads(capsys.readouterr().out)
    assert back["epsilon"]["one sample replaced"] > 10
    assert "exchange.m='all' only" in back["none"]["one client replaced"]
    assert (
        fedmix(
            monkeypatch,
            "privacy",
            "--clip",
            4,
            "--label-clip",
            1,
            "--epsilon",
            8,
            "--png",
            tmp_path / "means.png",
        )
        == 0
    )
    said = capsys.readouterr().out
    assert re.search(r"needed: exchange.noise=0\.\d+, exchange.label_noise=0\.\d+", said)
    assert said.count("▓") > 20
    assert (tmp_path / "means.png").read_bytes().startswith(b"\x89PNG")
    assert (
        fedmix(monkeypatch, "privacy", "--clip", 4, "--epsilon", 8, "--png", tmp_path / "means.svg")
        == 0
    )
    assert (tmp_path / "means.svg").read_bytes().startswith(b"<?xml")


def test_the_noise_needed_is_rounded_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """3.73063 deviations of 8/50 are 0.596901, to be copied with four digits: 0.5969 would give an
    ε above 1.
    """
    assert fedmix(monkeypatch, "privacy", "--n", 50, "--clip", 4, "--epsilon", 1) == 0
    said = capsys.readouterr().out
    assert "exchange.noise=0.597\n" in said
    assert "at most Δ = 0.16\n" in said


def test_privacy_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its exchange counts, and options count more; what sends no means of samples is refused."""
    path, chosen = (
        tmp_path / "mine.toml",
        experiment("digits", "fedmix").with_settings({"exchange.clip": 4.0, "exchange.m": 10}),
    )
    path.write_text(chosen.with_settings({"exchange.noise": 2.0}).toml())
    found = []
    for more in ([], ["--sigma", 1]):
        assert fedmix(monkeypatch, "privacy", path, "--json", *more) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert [(one["m"], one["clip"], one["noise"]) for one in found] == [
        (10, 4.0, 2.0),
        (10, 4.0, 1.0),
    ]
    for other, said in (
        (chosen.with_settings({"exchange.source": "noise"}), "exchange.source='noise'"),
        (experiment("digits", "hidden-fedmix"), "hidden states"),
    ):
        path.write_text(other.toml())
        assert fedmix(monkeypatch, "privacy", path) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--clip", 4, "--epsilon", 1, "--sigma", 1], "--epsilon asks for the noise"),
        (["--epsilon", 1], "no noise gives a guarantee: samples are not clipped"),
        (["--clip", 4, "--epsilon", -1], "epsilon=-1.0 must be positive"),
        (["--clip", 4, "--sigma", 1, "--delta", 0], "delta=0.0 must lie between 0 and 1"),
        (["--m", "many"], "--m 'many' is not a number"),
        (["--n", 0], "--n 0: a client has at least 1 sample"),
    ],
)
def test_privacy_refuses(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    args: list[object],
    said: str,
) -> None:
    assert fedmix(monkeypatch, "privacy", "--n", 50, *args) == 2
    assert said in capsys.readouterr().err


def test_privacy_of_all_that_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By hand, where all take part: μ² = 9·(2/6)² + (√2·4/40)², and with it ε by the one formula.
    A file's rounds, clients, noise and means count where nothing is said.
    """
    mu = math.hypot(3 * 2 / 6, math.sqrt(2) * 4 / 40)
    expected = gaussian_epsilon(mu, 1e-5)
    given = ["--rounds", 9, "--per-round", 20, "--clients", 20, "--clip", 4, "--sigma", 40]
    assert fedmix(monkeypatch, "privacy", *given, "--noise-multiplier", 6, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["epsilon"] == pytest.approx(expected)
    assert fedmix(monkeypatch, "privacy", *given, "--epsilon", expected, "--json") == 0
    assert json.loads(capsys.readouterr().out)["noise_multiplier"] == pytest.approx(6, rel=2e-3)
    path, settings = tmp_path / "mine.toml", {"exchange.clip": 4.0, "exchange.noise": 40.0}
    chosen = experiment("digits", "fedmix").with_settings(
        settings | {"updates.clip": 1.0, "updates.noise_multiplier": 6.0, "rounds": 9}
    )
    path.write_text(chosen.with_settings({"training.clients_per_round": 20}).toml())
    assert fedmix(monkeypatch, "privacy", path) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"one client replaced ε = {upwards(expected, 4)}" in said
    assert "updates of 9 rounds ε = " in said
    assert "On Flower" not in said  # all take part, whom nothing hides
    assert fedmix(monkeypatch, "privacy", path, "--per-round", 7) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "On Flower it is none: there, plan with --clients 7 --per-round 7." in said
    path.write_text(chosen.with_settings({"exchange.noise": 0.0}).toml())
    assert fedmix(monkeypatch, "privacy", path) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("None for all that leaves clients: the means: the means carry no noise")
    for algorithm, why in (
        ("globalmix", "the samples: raw samples of all clients are shared"),
        ("scaffold", "what clients keep: they send changes of it besides their updates"),
    ):
        noised = {"updates.clip": 1.0, "updates.noise_multiplier": 6.0}
        path.write_text(experiment("digits", algorithm).with_settings(noised).toml())
        assert fedmix(monkeypatch, "privacy", path) == 0
        assert f"None for all that leaves clients: {why}" in capsys.readouterr().out
    for wrong, why in (
        (["--rounds", 3], "updates carry no noise; give --noise-multiplier, or --epsilon"),
        (["--noise-multiplier", 3, "--epsilon", 1], "leave --noise-multiplier out"),
        (
            ["--noise-multiplier", 3, "--per-round", 21],
            "--per-round 21 is more than the 20 clients",
        ),
        (["--noise-multiplier", 3, "--clients", 0], "--clients=0 must be at least 1"),
        (["--noise-multiplier", 3, "--per-round", 0], "--per-round=0 must be at least 1"),
        (["--noise-multiplier", 3, "--n", 5], "--png and --n are about means alone"),
        (["--noise-multiplier", 0], "noise_multiplier=0.0 must be positive"),
    ):
        assert fedmix(monkeypatch, "privacy", *wrong) == 2
        assert why in capsys.readouterr().err


def test_privacy_plans_every_release_of_a_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tests in rounds 2, 4 and 5 of 5; a head from round 3 on is sent twice, and the plan is what
    the run's summary says then. All 20 take part: μ² = 5·(2/8)² + 2·(2√3/40)².
    """
    path = tmp_path / "mine.toml"
    settings = {
        "updates.clip": 0.01, "updates.noise_multiplier": 8.0, "training.clients_per_round": 20,
        "training.epochs": 1, "rounds": 5, "evaluate_every": 2,
        "head.name": "lda", "head.since": 3, "head.clip": 1.0, "head.noise": 40.0,
    }  # fmt: skip
    chosen = experiment("digits", "fedavg").with_settings(settings)
    path.write_text(chosen.toml())
    assert fedmix(monkeypatch, "privacy", path, "--json") == 0
    planned = json.loads(capsys.readouterr().out)["epsilon"]
    mu = math.sqrt(5 * (2 / 8) ** 2 + 2 * (2 * math.sqrt(3) / 40) ** 2)
    assert planned == pytest.approx(gaussian_epsilon(mu, 1e-5))
    assert fedmix(monkeypatch, "run", path, "--json", "--out", tmp_path / "runs") == 0
    [summary] = (tmp_path / "runs").glob("*/summary.json")
    assert json.loads(summary.read_text())["whole"]["epsilon"] == pytest.approx(planned)


def test_a_private_run_says_so_in_its_summary_and_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three rounds of 5 of 20 clients; without [updates] the summary says which part has none."""
    run = ["run", "digits", "--algorithm", "fedavg", "--rounds", 3, "--json", "--out", tmp_path]
    rule = ["--set", "updates.clip=0.01", "--set", "updates.noise_multiplier=8.0"]
    said = []
    for more in (rule, []):
        assert fedmix(monkeypatch, *run, *more) == 0
        [summary] = json.loads(capsys.readouterr().out).values()
        said.append(summary)
    assert said[0]["whole"]["epsilon"] == NoisySums(3, 8.0, 5, 20).epsilon()
    assert (
        "for one client replaced: updates of 3 rounds, 5 of 20 clients in each. The noise follows "
        "from the seed"
    ) in said[0]["privacy"]
    assert said[1]["whole"]["reason"] == (
        "the updates: they carry no noise (updates.noise_multiplier)"
    )
    page = tmp_path / "page.html"
    assert fedmix(monkeypatch, "report", tmp_path, "--output", page) == 0
    assert said[0]["privacy"] in page.read_text()
    capsys.readouterr()
    assert fedmix(monkeypatch, *run[:-3], "--out", tmp_path, *rule) == 0  # it is done already
    out = capsys.readouterr().out
    assert re.search(r"ε\b.*\n.*\bof all\b", out)
    assert upwards(said[0]["whole"]["epsilon"]) in out


def test_printed_commands_are_the_runs_of_the_sweep(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Each of them prints itself, and none trains."""
    sweep = ["run", "digits", "--algorithm", "naivemix", "--seeds", "2", "--rounds", "3"]
    sweep += ["--set", "objective.lam=0.05, 0.1", "--set", "training.lr=0.01"]
    sweep += ["--device", "cuda:0,cuda:1", "--jobs", "2", "--out", str(tmp_path / "a b")]
    sweep += ["--track", "wandb"]
    assert fedmix(monkeypatch, *sweep, "--print-commands") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("--set ")[2] for line in lines] == [
        f"objective.lam={lam} --set training.lr=0.01" for lam in (0.05, 0.05, 0.1, 0.1)
    ]
    assert lines[1] == (
        f"fedmix run digits --seed 1 --out '{tmp_path}/a b' --algorithm naivemix --rounds 3 "
        "--device cuda --track wandb --set objective.lam=0.05 --set training.lr=0.01"
    )
    for line in lines:
        assert fedmix(monkeypatch, *shlex.split(line)[1:], "--print-commands") == 0
        assert capsys.readouterr().out.splitlines() == [line]
    assert not list(tmp_path.iterdir())


def test_workers_and_devices_that_cannot_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for args, said in (
        (["--workers", 2, "--jobs", 2], "--jobs 2 trains several runs at once, and several"),
        (["--device", "cpu,cuda:1"], "several devices must be GPUs, such as cuda:0,cuda:1"),
        (["--device", "cuda:0,cuda:9", "--jobs", 2], "device cuda:9 does not exist"),
        (["--workers", 0], "engine.processes=0 should be greater than or equal to 1"),
    ):
        assert fedmix(monkeypatch, "run", "digits", *args, "--out", tmp_path / "out") == 2
        assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE='two' is no number of processes"),
        ({"RANK": None}, "WORLD_SIZE is 2, and RANK is not set; start this with torchrun"),
        ({"RANK": "2"}, "RANK='2' is no whole number below 2"),
        ({"RANK": "first"}, "RANK='first' is no whole number below 2"),
        ({"MASTER_PORT": "65536"}, "MASTER_PORT='65536' is no whole number below 65536"),
        ({"FEDMIX_TIMEOUT": "0"}, "FEDMIX_TIMEOUT='0' is no number of seconds above 0"),
        ({"FEDMIX_TIMEOUT": "nan"}, "FEDMIX_TIMEOUT='nan' is no number of seconds above 0"),
    ],
)
def test_variables_of_a_launcher_that_cannot_be(
    given: dict[str, str | None], said: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:  # fmt: skip
    right = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    for name, value in (right | given).items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert fedmix(monkeypatch, "run", "digits", "--out", tmp_path / "out") == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
