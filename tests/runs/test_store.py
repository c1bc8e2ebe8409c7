"""A store of packed runs is read like the run folders that went into it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fedmix.cli.app import app
from fedmix.core.errors import BadInput
from fedmix.experiment.presets import experiment
from fedmix.experiment.spec import Experiment
from fedmix.paper.outcome import outcome
from fedmix.report import load_runs, results_of
from fedmix.report.load import find_runs
from fedmix.runs import store
from tests.report.folders import run_folder, spec, study


def packed(runs: Path, out: Path) -> Path:
    store.pack(find_runs([runs]), out)
    return out


def test_results_of_a_store_are_those_of_its_folders(tmp_path: Path) -> None:
    folders = study(tmp_path / "runs")
    out = packed(folders, tmp_path / "stores/one")
    for asked in (out, out / "digits.jsonl", tmp_path / "stores"):
        found, there = (results_of(load_runs([at])).numbers().csv() for at in (asked, folders))
        assert found == there


def test_a_store_beside_its_folders_counts_no_run_twice(tmp_path: Path) -> None:
    folders = find_runs([study(tmp_path)])
    packed(tmp_path, tmp_path)
    assert (tmp_path / "digits.jsonl").is_file()
    assert find_runs([tmp_path]) == folders


def test_metrics_of_tested_rounds_and_the_last_are_kept(tmp_path: Path) -> None:
    settings = spec(rounds=7) | {"evaluate_every": 3}
    folder = run_folder(tmp_path / "runs/one", settings)
    [before], [after] = (load_runs([at]) for at in (folder, packed(folder, tmp_path / "store")))
    assert after.metrics["round"].tolist() == [3, 6, 7]
    assert np.isnan(after.metrics["accuracy"]).tolist() == [False, False, True]
    for name, column in before.metrics.items():
        rounded = 1e-4 if name.endswith("loss") else 0
        np.testing.assert_allclose(after.metrics[name], column[[2, 5, 6]], rtol=rounded)
    assert (after.scores, after.settings, after.environment, after.finished) == (
        before.scores,
        before.settings,
        before.environment,
        True,
    )
    assert after.clients is not None
    assert before.clients is not None
    np.testing.assert_array_equal(after.clients.counts, before.clients.counts)


def test_clients_are_written_once(tmp_path: Path) -> None:
    for algorithm in ("fedavg", "fedmix", "naivemix"):
        run_folder(tmp_path / "runs" / algorithm, spec(algorithm, rounds=2))
    text = (packed(tmp_path / "runs", tmp_path / "store") / "digits.jsonl").read_text()
    said = [json.loads(line).get("clients") for line in text.splitlines()[1:]]
    assert isinstance(said[0], dict)
    assert said[1:] == ["fedavg", "fedavg"]
    every = [run.clients for run in load_runs([tmp_path / "store"])]
    assert all(c is not None and len(c.sizes) == 20 for c in every)


def test_a_score_that_is_not_finite_stays_so(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "runs/one", spec(rounds=2))
    lines = '{"round": 1, "accuracy": 0.5}\n{"round": 2, "accuracy": null}\n'
    (folder / "metrics.jsonl").write_text(lines)
    [run] = load_runs([packed(folder, tmp_path / "store")])
    assert run.metrics["accuracy"].tolist() == [0.5, np.inf]


def test_runs_are_added_replaced_and_split_over_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = packed(run_folder(tmp_path / "a/one", spec(rounds=2)), tmp_path / "store")
    monkeypatch.setattr(store, "FULL", 2_000)
    packed(run_folder(tmp_path / "b/two", spec(rounds=2, seed=1)), out)
    assert sorted(path.name for path in out.iterdir()) == ["digits-2.jsonl", "digits.jsonl"]
    assert {run.seed for run in load_runs([out])} == {"0", "1"}
    monkeypatch.undo()
    packed(run_folder(tmp_path / "c/two", spec(rounds=2, seed=5)), out)
    assert [path.name for path in out.iterdir()] == ["digits.jsonl"]
    assert {run.seed for run in load_runs([out])} == {"0", "5"}


def test_runs_that_are_not_done_are_left_out(tmp_path: Path) -> None:
    done = run_folder(tmp_path / "runs/done", spec(rounds=3))
    begun = run_folder(tmp_path / "runs/begun", spec(rounds=3), done=2)
    _, left_out = store.pack([done, begun], tmp_path / "store")
    assert left_out == [begun]
    assert [run.name for run in store.packed_in(tmp_path / "store")] == ["done"]
    with pytest.raises(BadInput, match="none of these runs is done"):
        store.pack([begun], tmp_path / "other")
    assert not (tmp_path / "other").exists()


def finished(experiment: Experiment, folder: Path) -> Path:
    run_folder(folder, experiment.values())
    summary = folder / "summary.json"
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"rounds": experiment.rounds}))
    return folder


def test_an_experiment_is_found_by_its_id_and_by_its_settings(tmp_path: Path) -> None:
    one, other = (experiment("digits", "fedmix", seed=seed) for seed in (0, 1))
    old = f"{other.id.rpartition('-')[0]}-0123456789"  # as runs were named before ids had a schema
    finished(one, tmp_path / "runs" / one.id)
    finished(other, tmp_path / "runs" / old)
    out = packed(tmp_path / "runs", tmp_path / "store")
    for wanted in (one, other):
        found = outcome(wanted, out)
        assert found.packed
        assert found.record is not None
        assert found.record.seed == str(wanted.seed)
    assert not outcome(one.with_settings({"rounds": 500}), out).known
    assert not outcome(experiment("digits", "naivemix"), out).known


def test_a_failure_is_packed(tmp_path: Path) -> None:
    one = experiment("digits", "fedmix")
    folder = run_folder(tmp_path / "runs" / one.id, one.values(), done=4)
    said = {"kind": "collapsed", "round": 4, "reason": "it is hardly better than a guess"}
    (folder / "failure.json").write_text(json.dumps(said))
    found = outcome(one, packed(tmp_path / "runs", tmp_path / "store"))
    assert found.record is None
    assert found.failure == ("collapsed", 4, "it is hardly better than a guess")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("summary.json", "[]"),
        ("clients.json", "[1]"),
        ("metrics.jsonl", "nonsense"),
        ("metrics.jsonl", "[1]\n[2]\n"),
        ("experiment.toml", "rounds = "),
    ],
)
def test_a_damaged_folder_is_named(tmp_path: Path, name: str, content: str) -> None:
    folder = run_folder(tmp_path / "one", spec(rounds=2))
    (folder / name).write_text(content)
    with pytest.raises(BadInput, match=r"one is damaged \(.*\); restore it") as caught:
        store.pack([folder], tmp_path / "store")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "[1]",
        '{"run": 3, "experiment": {}, "summary": {}}',
        '{"run": "a", "experiment": {}}',
        '{"run": "a", "experiment": {}, "summary": {}, "clients": "unknown"}',
        '{"run": "a", "experiment": {}, "summary": {}, "clients": [3]}',
        '{"run": "a", "experiment": {}, "summary": {}, "environment": "here"}',
        '{"run": "a", "experiment": {}, "summary": [], "failure": {}}',
    ],
)
def test_damage_is_named_by_file_and_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "digits.jsonl"
    path.write_text(f"{json.dumps(store.HEADER)}\n{line}\n")
    with pytest.raises(BadInput, match=r"digits\.jsonl, line 2, does not hold a run"):
        load_runs([tmp_path])


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (3, "metrics are not columns"),
        ({"round": [1, 2], "accuracy": [0.5]}, "metrics are not columns"),
        ({"round": [2, 1], "accuracy": [0.5, 0.5]}, "round 1 comes after round 2"),
        ({"round": [1], "accuracy": [True]}, "accuracy is not a number"),
    ],
)
def test_damaged_metrics_are_named_by_run(tmp_path: Path, columns: Any, said: str) -> None:
    line = {"run": "a", "experiment": spec(rounds=1), "summary": {}, "metrics": columns}
    (tmp_path / "digits.jsonl").write_text(f"{json.dumps(store.HEADER)}\n{json.dumps(line)}\n")
    with pytest.raises(BadInput, match=rf"digits\.jsonl/a: .*{said}"):
        load_runs([tmp_path])


def test_other_files_are_no_stores(tmp_path: Path) -> None:
    (tmp_path / "other.jsonl").write_text('{"run": "a"}\n')
    assert store.packed_in(tmp_path) == []


@pytest.mark.parametrize("content", ["", '{"mine": 1}\n', '{"fedmix": "runs", "version": 2}\n'])
def test_a_file_that_is_no_store_is_kept(tmp_path: Path, content: str) -> None:
    folder = run_folder(tmp_path / "one", spec(rounds=2))
    mine = tmp_path / "digits.jsonl"
    mine.write_text(content)
    with pytest.raises(BadInput, match=r"digits\.jsonl is there and holds no packed runs; choose"):
        store.pack([folder], tmp_path)
    assert mine.read_text() == content


@pytest.mark.parametrize("score", ['"high"', "1" + 30 * "0"])
def test_what_could_not_be_read_again_is_not_packed(tmp_path: Path, score: str) -> None:
    folder = run_folder(tmp_path / "one", spec(rounds=2))
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    broken = json.dumps(json.loads(lines[0]) | {"accuracy": "?"}).replace('"?"', score)
    (folder / "metrics.jsonl").write_text(f"{broken}\n{lines[1]}\n")
    said = CliRunner().invoke(app, ["pack", str(folder), "-o", str(tmp_path / "store")])
    assert isinstance(said.exception, BadInput)
    assert not (tmp_path / "store").exists()
