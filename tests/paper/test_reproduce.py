"""`fedmix reproduce` on every table at miniature size, and what can happen on the way."""

import json
import os
import re
import signal
from html import unescape
from pathlib import Path
from typing import Any

import matplotlib
import pytest

from fedmix.core.errors import Collapsed
from fedmix.experiment.spec import Experiment
from fedmix.paper import TABLES, estimate
from fedmix.paper.scale import WARNING, small
from fedmix.runs.progress import Progress
from fedmix.runs.run import Run
from fedmix.training.federation import Federation
from tests.test_cli import fedmix

EPOCHS = ["reproduce", "epochs", "--rows", "fedavg,fedmix", "--columns", "1,2", "--scale", "small"]


@pytest.mark.parametrize("name", TABLES)
def test_every_table_runs(
    name: str,
    tiny: Path,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    args = ["reproduce", name, "--scale", "small", "--data", tiny, "--out", out, "--json"]
    assert fedmix(monkeypatch, *args) == 0
    first = capsys.readouterr().out
    said = json.loads(first)
    assert (said["scale"], said["warnings"]) == ("small", [WARNING])
    table = TABLES[name].select(None, None)
    assert len(said["cells"]) == len(table.rows) * len(table.columns)
    for cell in said["cells"]:
        assert cell["paper"] == table.number(cell["row"], cell["column"])
        [result] = cell["results"]
        assert (out / result["run"] / "summary.json").is_file()
        unknown = cell["column"].startswith(
            ("memory", "medium", "large")
        )  # no GPU, and no clients of such sizes
        assert (result["value"] is None) == (result["never"] or unknown)
    assert ("328 complete LEAF writers" in first) == any(
        e.data.name == "femnist" for e in table.experiments()
    )
    told, runs = " ".join(said["notes"]), {cell["results"][0]["run"] for cell in said["cells"]}
    assert {run for run in runs if run in told} == {
        run for run in runs if "warning" in json.loads((out / run / "summary.json").read_text())
    }

    stamps = {
        path: path.stat().st_mtime_ns
        for path in out.rglob("*")
        if path.is_file() and path.name != ".lock"
    }
    assert fedmix(monkeypatch, *args) == 0
    assert capsys.readouterr().out == first
    assert stamps == {
        path: path.stat().st_mtime_ns
        for path in out.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def test_local_accuracy_is_that_of_the_clients_own_samples(
    tiny: Path, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Over clients of fewer than 100 samples, which here are all: the mean of their accuracies, not
    of their samples'.
    """
    args = [
        "reproduce",
        "local-accuracy",
        "--rows",
        "0.2",
        "--scale",
        "small",
        "--data",
        tiny,
        "--out",
        out,
        "--json",
    ]
    assert fedmix(monkeypatch, *args) == 0
    cells = {cell["column"]: cell for cell in json.loads(capsys.readouterr().out)["cells"]}
    run = Run.open(out / cells["small-mean"]["results"][0]["run"])
    federation = run.restored(tiny)
    assert federation.round == 1
    clients = federation.evaluate_clients().scores
    assert len(clients) == 3
    assert not (run.folder / "client_scores.json").exists()  # clients.json has them
    assert cells["small-mean"]["mean"] == pytest.approx(100 * clients.mean())
    assert cells["small-std"]["mean"] == pytest.approx(100 * clients.std())
    assert cells["large-mean"]["mean"] is None


def test_client_sizes_are_those_of_every_seed(
    tiny: Path, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each seed draws its own writers."""
    args = [
        "reproduce",
        "main",
        "--rows",
        "fedavg",
        "--columns",
        "femnist",
        "--seeds",
        "3",
        "--scale",
        "small",
        "--json",
    ]
    assert fedmix(monkeypatch, *args, "--data", tiny, "--out", out) == 0
    said = json.loads(capsys.readouterr().out)
    sizes = [
        json.loads((out / r["run"] / "clients.json").read_text())["sizes"]
        for r in said["cells"][0]["results"]
    ]
    assert len({(min(each), max(each)) for each in sizes}) > 1
    every = [size for each in sizes for size in each]
    told = f"{min(every)} to {max(every)} training samples (mean {sum(every) / len(every):.0f})"
    assert f"femnist: 3 clients, drawn anew by each of 3 seeds, with {told}." in said["notes"]


def test_everything_that_is_written_says_small(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        kind: tmp_path / f"it.{end}"
        for kind, end in (("html", "html"), ("png", "svg"), ("markdown", "md"))
    }
    options = [a for kind, path in files.items() for a in (f"--{kind}", path)]
    monkeypatch.setitem(
        matplotlib.rcParams, "svg.fonttype", "none"
    )  # else text is drawn, and cannot be read
    args = [*EPOCHS, "--seeds", "2", "--data", tiny, "--out", tmp_path / "runs", *options]
    assert fedmix(monkeypatch, *args) == 0
    printed = capsys.readouterr().out
    page, svg, markdown = (files[kind].read_text() for kind in ("html", "png", "markdown"))
    for text in (printed, page, svg, markdown):
        assert WARNING.split(":")[0] in text
        assert "FedMix" in text
        assert "E = 1" in text
    for text in (printed, unescape(page), markdown):
        assert "CHANGED SETTINGS" not in text
        assert "75.8" in text  # the paper's, FedMix, E = 1
        assert re.search(
            r"FedMix − FedAvg = [+-][0-9.]+ \((95 % interval|the same in all 2 seeds)", text
        )
        assert "pairs in the paper's order" in text
    assert "<title>FedAvg, E = 1, the paper: 74.4</title>" in page
    assert "<title>FedMix, E = 1, the paper: 75.8</title>" in page
    assert page.count("<title>FedMix, E = 1: ") == 1


def test_a_trend_is_drawn_as_lines(
    tiny: Path,
    out: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Columns of one data set and metric, three or more, share a chart: for each row ours and the
    paper's by column.
    """
    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")
    page, svg = tmp_path / "it.html", tmp_path / "it.svg"
    args = [
        "reproduce",
        "epochs",
        "--rows",
        "fedavg,fedmix",
        "--scale",
        "small",
        "--data",
        tiny,
        "--out",
        out,
    ]
    assert fedmix(monkeypatch, *args, "--html", page, "--png", svg, "--json") == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    text = page.read_text()
    dots = re.findall(r"<title>(\w+), (E = \d+)(, the paper)?: ([0-9.]+).*?</title>", text)
    assert [(row, column, value) for row, column, paper, value in dots if paper] == [
        ("FedAvg", "E = 1", "74.4"), ("FedAvg", "E = 2", "73.8"), ("FedAvg", "E = 5", "80.7"),
        ("FedAvg", "E = 10", "78.9"), ("FedMix", "E = 1", "75.8"), ("FedMix", "E = 2", "81.2"),
        ("FedMix", "E = 5", "83.0"), ("FedMix", "E = 10", "82.5"),
    ]  # fmt: skip
    ours = [(row, column, value) for row, column, paper, value in dots if not paper]
    assert [value for _, _, value in ours] == [f"{c['mean']:.1f}" for c in cells]
    assert text.count("Ours beside the paper&#39;s: test accuracy") == 2  # one chart, and its name
    for label in ("E = 1", "E = 10", "FedMix", "the paper"):
        assert label in svg.read_text()


def test_a_diverged_run_is_a_result(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    args = [*EPOCHS, "--data", tiny, "--out", tmp_path, "--set", "training.lr=1e39"]
    assert fedmix(monkeypatch, *args) == 0
    out, err = capsys.readouterr()
    assert "diverged in round 1" in out
    assert "CHANGED SETTINGS: training.lr=1e+39" in out
    told = {
        path.parent.name: json.loads(path.read_text()) for path in tmp_path.glob("*/failure.json")
    }
    assert [failure["round"] for failure in told.values()] == [1] * 4
    for run, failure in told.items():
        where = f"round 1, client {failure['client']}, step {failure['step']}"
        assert f"  {where}: {failure['reason']}\n" in err
        assert ("objective.expand=logits" in failure["reason"]) == ("fedmix" in run)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("it ran again")

    monkeypatch.setattr(Run, "execute", refuse)
    page, markdown = tmp_path / "it.html", tmp_path / "it.md"
    assert fedmix(monkeypatch, *args, "--html", page, "--markdown", markdown) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert fedmix(monkeypatch, *args, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert {cell["results"][0]["diverged"] for cell in said["cells"]} == {1}
    for run, failure in told.items():
        note = f"{run} diverged in round 1: {failure['reason']}."
        assert note in said["notes"]
        assert f"Note. {note}" in printed
        assert note in unescape(page.read_text())
        assert f"- {note}\n" in markdown.read_text()


def test_a_collapsed_run_is_a_result(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def collapse(*_: Any, **__: Any) -> None:
        raise Collapsed(60, "the model only guesses")

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("it ran again")

    monkeypatch.setattr(Federation, "run", collapse)
    args = [*EPOCHS, "--data", tiny, "--out", tmp_path]
    assert fedmix(monkeypatch, *args) == 0
    monkeypatch.setattr(Run, "execute", refuse)
    out, err = capsys.readouterr()
    assert "collapsed in round 60" in out
    assert err.count("  after round 60 the model only guesses\n") == 4
    assert fedmix(monkeypatch, *args, "--json") == 0
    results = [cell["results"][0] for cell in json.loads(capsys.readouterr().out)["cells"]]
    assert {(result["diverged"], result["collapsed"]) for result in results} == {(None, 60)}
    told = json.loads((tmp_path / results[0]["run"] / "failure.json").read_text())
    assert told == {"kind": "collapsed", "round": 60, "reason": "the model only guesses"}


def test_ctrl_c_stops_and_the_same_command_goes_on(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    args = [*EPOCHS, "--data", tiny, "--out", tmp_path, "--rounds", "3", "--quiet"]
    update = Progress.update

    def press(self: Progress, line: dict[str, Any]) -> None:
        if line["round"] == 1:
            os.kill(os.getpid(), signal.SIGINT)
        update(self, line)

    with monkeypatch.context() as patched:
        patched.setattr(Progress, "update", press)
        assert fedmix(monkeypatch, *args) == 130
    assert "stopped with 0 of 4 runs done; nothing is lost" in capsys.readouterr().err
    assert not list(tmp_path.glob("*/summary.json"))
    assert fedmix(monkeypatch, *args) == 0
    rounds = [len(path.read_text().splitlines()) for path in tmp_path.glob("*/metrics.jsonl")]
    assert rounds == [3] * 4


def test_a_cell_that_cannot_run_loses_none_of_the_others(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of twenty classes that are asked for, one data set has a hundred and the other ten."""
    args = [
        "reproduce",
        "main",
        "--rows",
        "fedavg",
        "--columns",
        "cifar10,cifar100",
        "--scale",
        "small",
        "--out",
        tmp_path,
    ]
    assert fedmix(monkeypatch, *args, "--data", tiny, "--set", "data.classes_per_client=20") == 1
    out, err = capsys.readouterr()
    assert "1 of 2 runs failed" in err
    assert "20 classes per client, but the data has 10" in err
    assert re.search(r"FedAvg +– +– +[0-9.]+", out)


def test_more_clients_a_round_than_a_cell_has_are_refused_before_anything_runs(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At this scale CIFAR-10, which comes first, has fifteen, and CIFAR-100 five."""
    args = [
        "reproduce",
        "main",
        "--rows",
        "fedavg",
        "--columns",
        "cifar10,cifar100",
        "--scale",
        "small",
    ]
    args += [
        "--data",
        str(tiny),
        "--out",
        str(tmp_path / "runs"),
        "--set",
        "training.clients_per_round=6",
    ]
    assert fedmix(monkeypatch, *args) == 2
    assert (
        capsys.readouterr().err
        == "fedmix: training.clients_per_round=6 is more than the 5 clients of cifar100\n"
    )
    assert not list(tmp_path.iterdir())


def test_only_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        fedmix(monkeypatch, "reproduce", "shakespeare", "--no-run", "--out", tmp_path, "--json")
        == 0
    )
    said = json.loads(capsys.readouterr().out)
    assert {cell["text"] for cell in said["cells"]} == {"–"}
    assert (
        said["notes"][-1]
        == f"There is no finished run of these settings under {tmp_path}; leave --no-run out to "
        "run them."
    )
    assert not list(tmp_path.iterdir())


def test_runs_of_another_device_are_pointed_out(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside a file that cannot be read, which is no reason to show nothing."""
    assert fedmix(monkeypatch, *EPOCHS, "--data", tiny, "--out", tmp_path) == 0
    assert "There is" not in capsys.readouterr().out
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "experiment.toml").write_text("[")
    show = [*EPOCHS, "--out", tmp_path, "--no-run", "--device", "cuda"]
    assert fedmix(monkeypatch, *show, "--json") == 0
    told = f"no finished run of these settings under {tmp_path}, but with --device cpu there is"
    assert json.loads(capsys.readouterr().out)["notes"][-1] == f"There is {told}."
    page = tmp_path / "it.html"
    assert fedmix(monkeypatch, *show, "--html", page) == 2
    assert capsys.readouterr() == (
        "",
        f"fedmix: --html {page} would show runs, but there is {told}\n",
    )
    assert not page.exists()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "give a table, one of main"),
        (["mian"], "table 'mian' is unknown"),
        (
            ["main", "--rows", "fedmax"],
            "table main has no row 'fedmax'; did you mean fedmix? Known are globalmix",
        ),
        (["main", "--seeds", "0"], "--seeds 0: at least one"),
        (["main", "--scale", "tiny"], "--scale 'tiny' is unknown"),
        (["main", "--score", "mean"], "--score 'mean' is unknown"),
        (
            ["main", "--set", "training.momentum=0.0,0.9"],
            "--set training.momentum has several values",
        ),
        (
            ["epochs", "--set", "training.epochs=2"],
            "training.epochs cannot be set for table epochs",
        ),
        (["main", "--html", "gone/it.html"], "there is no folder gone"),
        (["main", "--data", "nowhere"], "there are no parquet files"),
        (["main", "--data", "nowhere", "--jobs", "2"], "there are no parquet files"),
        (["main", "--device", "tpu", "--jobs", "2"], "device 'tpu' cannot be used"),
        (["main", "--jobs", "0"], "--jobs 0: at least one"),
        (
            ["shakespeare", "--no-run", "--html", "it.html"],
            "--html it.html would show runs, but there is no finished run",
        ),
        (["main", "--rounds", "5", "--set", "rounds=6"], "rounds is given twice"),
        (
            ["main", "--set", "objective.lam=0.1", "--set", "objective.lam=0.2"],
            "objective.lam is given twice",
        ),
        (["beyond", "--list", "--scale", "small"], "of laptop size already"),
        (["--list", "--rows", "fedavg"], "table lambda has no row 'fedavg'"),
        (["main", "--no-run", "--html", "it.png"], "it.png: what is written there is no picture"),
        (
            ["main", "--no-run", "--markdown", "it.svg", "--png", "it.svg"],
            "it.svg: what is written there is no picture",
        ),
        (
            ["main", "--no-run", "--markdown", "it.md", "--html", "./it.md"],
            "it.md is to be written twice",
        ),
        (["shakespeare", "--no-run", "--png", "it.gif"], "written as .png or .svg"),
    ],
)
def test_bad_input_is_one_sentence(
    args: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fedmix(monkeypatch, "reproduce", *args, "--quiet") == 2
    err = capsys.readouterr().err
    assert err.startswith("fedmix: ")
    assert said in err
    assert len(err.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_list(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A step of 1 ms: CIFAR-10's main setting has 500 rounds of 15 clients with 2 epochs of ⌈833.3
    / 10⌉ steps.
    """
    monkeypatch.setattr(estimate, "measure", lambda *_: 0.001)
    assert fedmix(monkeypatch, "reproduce", "--list", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert "measured here" in said["how"]
    tables = said["tables"]
    assert list(tables) == [*TABLES, "all"]
    assert (tables["main"]["runs"], tables["cost"]["runs"], tables["mean-size"]["runs"]) == (
        27,
        3,
        20,
    )
    assert tables["cost"]["seconds"] == 3 * 500 * 15 * 2 * 84 // 1000
    assert tables["all"]["runs"] < sum(
        table["runs"] for name, table in tables.items() if name != "all"
    )
    assert fedmix(monkeypatch, "reproduce", "--list") == 0
    assert re.search(r"main +Test accuracy .* 27 ", capsys.readouterr().out)
    assert fedmix(monkeypatch, "reproduce", "cost", "--list", "--json") == 0
    assert json.loads(capsys.readouterr().out)["tables"] == {"cost": tables["cost"]}


def test_list_counts_what_the_same_options_would_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two algorithms, three seeds, 100 rounds of 15 clients with one epoch of 84 steps of 1 ms."""
    monkeypatch.setattr(estimate, "measure", lambda *_: 0.001)
    options = [
        "--columns",
        "cifar10",
        "--rows",
        "fedavg,fedmix",
        "--seeds",
        "3",
        "--rounds",
        "100",
        "--set",
        "training.epochs=1",
    ]
    assert fedmix(monkeypatch, "reproduce", "main", "--list", "--json", *options) == 0
    main = json.loads(capsys.readouterr().out)["tables"]["main"]
    assert (main["runs"], main["seconds"]) == (6, 6 * 100 * 15 * 84 // 1000)
    assert fedmix(monkeypatch, "reproduce", "main", "--list", *options) == 0
    assert "With 3 seeds." in capsys.readouterr().out


def test_a_step_can_be_measured() -> None:
    one = small(TABLES["shakespeare"].experiment("fedavg", "accuracy"))
    assert 0 < estimate.measure(one.data.name, one.model, False, "cpu") < 60


def test_small_runs_are_listed_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps of 1 ms: 80 rounds of 15 clients with 250 samples and E = 1, 2, 5, 10; the roles have
    0.8 · (500 - 79) = 336.8 samples each; digits 0.3 of 0.8 · 1797, 21.6 for each of 20 clients.
    """
    monkeypatch.setattr(estimate, "measure", lambda *_: 0.001)
    for args, taken in (
        (["epochs", "--scale", "small", "--rows", "fedavg"], 80 * 15 * 25 * (1 + 2 + 5 + 10)),
        (["shakespeare", "--scale", "small", "--rows", "fedavg"], 30 * 20 * 2 * 34),
        (["beyond", "--columns", "digits", "--rows", "fedavg"], 80 * 5 * 2 * 3),
    ):
        assert fedmix(monkeypatch, "reproduce", *args, "--list", "--json") == 0
        told = json.loads(capsys.readouterr().out)["tables"][args[0]]
        assert told["seconds"] == round(taken / 1000)


def test_one_table_is_listed_with_its_rows_and_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the frontier run by default: three uses of one mean a client, and two heads, at nine ε."""
    monkeypatch.setattr(estimate, "measure", lambda *_: 0.001)
    assert fedmix(monkeypatch, "reproduce", "frontier", "--list") == 0
    told = capsys.readouterr().out
    for line in (r"frontier .* 45 ", r"naivemix-20 .*if named", r"head-normalised .*yes", r"3000 "):
        assert re.search(line, told), line


def test_steps_of_ragged_clients_are_counted_by_their_mean() -> None:
    """Shakespeare: 50 rounds, 60 clients, 2 epochs of ⌈0.8 · 3743.3 / 10⌉ = 300 steps."""
    [spec] = TABLES["shakespeare"].select("fedavg", None).experiments()
    assert isinstance(spec, Experiment)
    assert estimate.client_steps(spec) == 50 * 60 * 2 * 300
    half = spec.with_settings({"training.clients_per_round": 0.5, "data.clients": 80})
    assert estimate.client_steps(half) == 50 * 40 * 2 * 300
