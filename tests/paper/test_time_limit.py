"""benchmarks/tables.py: which runs come first, what shares a process, and the limit of time."""

import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fedmix.paper.outcome import outcome

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tables() -> Any:
    spec = importlib.util.spec_from_file_location("tables", ROOT / "benchmarks" / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_all_tables_of_a_seed_come_before_the_next_seed(tables: Any) -> None:
    """FedMix with λ = 0.05 is in both tables and comes once a seed."""
    asked = ["lambda:fedmix", "epochs:fedavg,fedmix:2"]
    found = tables.experiments(asked, (0, 1), "small", {"objective.expand": "logits"})
    assert [(e.seed, e.algorithm) for e in found] == [
        (seed, name) for seed in (0, 1) for name in (*["fedmix-logits"] * 4, "fedavg")
    ]


def test_shakespeare_never_runs_beside_shakespeare(tables: Any) -> None:
    asked = ["shakespeare:fedavg,naivemix", "lambda:fedmix"]
    found = tables.experiments(asked, (0,), "small", {})
    assert [[e.data.name for e in task] for task in tables.tasks(found)] == [
        *[["cifar10"]] * 4,
        ["shakespeare"] * 2,
    ]


def test_runs_end_in_two_processes(
    tables: Any, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    args = ["mean-size:femnist-naivemix:5,all", "--scale", "small", "--jobs", "2"]
    args += ["--data", str(tiny), "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["tables.py", *args])
    tables.main()
    assert "2 of 2 runs are there" in capfd.readouterr().out
    assert len(list(tmp_path.glob("*/summary.json"))) == 2
    tables.main()
    assert "2 runs, 0 of them missing" in capfd.readouterr().out


def test_at_the_limit_a_run_stops_with_a_checkpoint_and_goes_on(
    tables: Any, tiny: Path, tmp_path: Path
) -> None:
    changes = {"rounds": 3}
    [one] = tables.experiments(["mean-size:femnist-naivemix:5"], (0,), "small", changes)
    assert "stopped" in tables.execute(one, tmp_path, tiny, time.time() - 1)
    metrics = tmp_path / one.id / "metrics.jsonl"
    assert [json.loads(line)["round"] for line in metrics.read_text().splitlines()] == [1]
    assert not outcome(one, tmp_path).known
    assert "%" in tables.execute(one, tmp_path, tiny, time.time() + 60)
    assert len(metrics.read_text().splitlines()) == 3
    assert outcome(one, tmp_path).known


def test_a_refused_run_is_told(tables: Any, tmp_path: Path) -> None:
    [one] = tables.experiments(["mean-size:femnist-naivemix:5"], (0,), "small", {})
    nowhere = tmp_path / "nothing"
    assert "refused: there are no parquet files" in tables.execute(one, tmp_path, nowhere, 0.0)
