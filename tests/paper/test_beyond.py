"""The table that is not the paper's: its experiments, its score, and tests corrected by number."""

import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedmix import Head
from fedmix.cli.app import app
from fedmix.paper import STUDIES, TABLES
from fedmix.paper.comparison import Difference, corrected
from fedmix.paper.study import Study
from tests.paper.test_comparison import cell
from tests.paper.test_metrics import write_run

BEYOND = STUDIES["beyond"]


def test_it_is_none_of_the_papers_tables() -> None:
    assert "beyond" not in TABLES
    assert not BEYOND.paper
    names = {row.name for row in BEYOND.rows}
    assert len(names) == len(BEYOND.rows)
    assert {name for pair in BEYOND.pairs for name in pair} <= names


def test_every_cell_is_an_experiment_of_its_own_on_the_same_clients() -> None:
    cells = {
        (r.name, c.name): BEYOND.experiment(r.name, c.name, 3)
        for r in BEYOND.rows
        for c in BEYOND.columns
    }
    assert len({e.id for e in cells.values()}) == len(cells)
    for column in BEYOND.columns:
        alike = [e for (_, c), e in cells.items() if c == column.name]
        assert len({json.dumps(e.data.model_dump()) for e in alike}) == 1
        assert len({json.dumps(e.training.model_dump()) for e in alike}) == 1
        rounds = 300 if column.name == "femnist-long" else 80
        assert {(e.rounds, e.seed, e.training.epochs) for e in alike} == {(rounds, 3, 2)}
    few = cells["drawn-5", "femnist"]
    assert few.exchange is not None
    assert (few.exchange.m, few.exchange.cutoff) == (5, 5)
    assert (few.objective.lam, few.objective.alpha, few.objective.per) == (None, 1.0, "sample")
    assert cells["normalised", "digits"].model.normalise
    assert cells["fedadam", "classes"].server.name == "fedadam"
    both = cells["head-drawn-5", "cifar100"], cells["drawn-5", "cifar100"]
    assert both[0].build_head() == Head(since=60)
    assert both[0].with_settings({"head": None}) == both[1]


def three(differences: tuple[float, float, float], name: str) -> Difference:
    """Three seeds, of which the second row has 50 % each."""
    return Difference(cell([50 + d for d in differences]), cell([50.0] * 3, name=name))


def p(t: float) -> float:
    """Two-sided, of a t with 2 degrees of freedom."""
    return 1 - abs(t) / math.sqrt(2 + t * t)


def test_holms_correction_by_hand() -> None:
    """Of three tests the smallest p counts three times, the next twice, the largest once; none
    becomes smaller than the one before.

    1, 2, 3: mean 2, deviation 1, t = 2√3. 1, 1.1, 1.2: t = 11√3. 1, 2, 3.1: mean 6.1/3, squares
    about it 2.2067, deviation √1.1033.
    """
    first, second = p(11 * math.sqrt(3)), p(2 * math.sqrt(3))
    third = p(6.1 / 3 / math.sqrt(2.206667 / 2 / 3))
    assert first < second < third
    found = corrected([
        three((1, 2, 3), "a"), three((1, 1.1, 1.2), "b"), three((1, 2, 3.1), "c"),
        three((1, 1, 1), "d"),
    ])  # fmt: skip
    assert found[0].corrected == pytest.approx(2 * second, rel=1e-4)
    assert found[1].corrected == pytest.approx(3 * first, rel=1e-4)
    assert found[2].corrected == pytest.approx(max(third, 2 * second), rel=1e-4)
    assert found[3].corrected is None  # the same in all seeds: no test
    assert "by Holm's method 0.15" in found[0].text()
    [alone] = corrected([three((1, 2, 3), "a")])
    assert alone.corrected is None


def test_the_command_shows_the_mean_of_the_last_quarter(tmp_path: Path) -> None:
    """Tests in rounds 5 to 80; those of rounds 60, 65, ..., 80 are 60, 61, ..., 64 %."""
    study = Study(BEYOND.select("fedavg", "digits"))
    [experiment] = study.experiments()
    accuracies = [0.2] * 11 + [0.60, 0.61, 0.62, 0.63, 0.64]
    write_run(tmp_path, experiment, accuracies, 80)
    asked = ["reproduce", "beyond", "--rows", "fedavg", "--columns", "digits", "--no-run"]
    asked += ["--out", str(tmp_path)]
    told = CliRunner().invoke(app, asked)
    assert "62.0" in told.output
    assert "last quarter" in told.output
    assert "The paper's" not in told.output
    assert "order" not in told.output
    last = CliRunner().invoke(app, [*asked, "--score", "last"])
    assert "64.0" in last.output
