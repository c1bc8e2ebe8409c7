"""What is read from a run's folder: by hand."""

import json
import math
from pathlib import Path

import pytest

from fedmix.experiment.spec import Experiment
from fedmix.paper import TABLES
from fedmix.paper.comparison import Comparison, compare
from fedmix.paper.metrics import Protocol
from fedmix.paper.study import Study
from fedmix.runs.summary import scores_of

ACCURACIES = [
    0.3,
    *[0.5] * 8,
    0.75,
    0.6,
    0.8,
    0.7,
]  # in rounds 5, 10, ..., 65; each round takes a minute


def write_run(out: Path, experiment: Experiment, accuracies: list[float], rounds: int) -> None:
    """A folder as a finished run leaves it, with a test every five rounds."""
    folder = out / experiment.id
    folder.mkdir(parents=True)
    (folder / "experiment.toml").write_text(experiment.toml())
    tested = dict(enumerate(accuracies, 1))
    scores = scores_of("accuracy", [(5 * n, a) for n, a in tested.items()], experiment.target)
    (folder / "summary.json").write_text(json.dumps({"rounds": rounds} | scores))
    lines = [
        {"round": r, "seconds": 60.0 * r, "bytes_up": 0, "bytes_down": 0}
        | ({"accuracy": tested[r // 5]} if r % 5 == 0 else {})
        for r in range(1, rounds + 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def compared(
    out: Path, table: str, protocol: Protocol = "last", accuracies: list[float] = ACCURACIES
) -> Comparison:
    """FedAvg and FedMix in a table's CIFAR-10 at 65 rounds, which came to the same."""
    study = Study(
        TABLES[table].select("fedavg,fedmix", "cifar10" if table == "main" else "hours"),
        changes={"rounds": 65},
    )
    for experiment in study.experiments():
        if not (out / experiment.id).is_dir():
            write_run(out, experiment, accuracies, 65)
    return compare(study, out, protocol)


@pytest.mark.parametrize(
    ("protocol", "score"),
    [("last", 70.0), ("best", 80.0), ("last-ten", 58.5), ("late", 71.25)],
)
def test_each_score_is_what_it_says(protocol: Protocol, score: float, tmp_path: Path) -> None:
    """The last ten: six of 50 %, then 75, 60, 80 and 70: 585 in all.
    Late, from round 49 on: the last four.

    Rounds to 70 % do not depend on it.
    """
    accuracy, rounds = compared(tmp_path, "main", protocol).cells[0]
    assert accuracy.results[0].value == pytest.approx(score)
    assert rounds.results[0].value == 50


def test_hours_are_those_to_the_target(tmp_path: Path) -> None:
    """70 % is passed in round 50, after 50 minutes."""
    [hours] = compared(tmp_path, "cost").cells[0]
    assert hours.results[0].value == pytest.approx(50 / 60)


def test_a_target_that_was_missed_is_never_reached(tmp_path: Path) -> None:
    low = [0.5] * 13
    assert compared(tmp_path, "main", accuracies=low).cells[0][1].results[0].value == math.inf
    [hours] = compared(tmp_path, "cost", accuracies=low).cells[0]
    assert (hours.results[0].value, hours.text()) == (math.inf, "never")


def test_only_accuracies_are_tested(tmp_path: Path) -> None:
    assert [d.first.column.name for d in compared(tmp_path, "main").differences()] == ["cifar10"]


def test_a_run_that_is_to_go_on_is_not_done(tmp_path: Path) -> None:
    """It was finished with fewer rounds than are asked for now."""
    study = Study(TABLES["cost"].select("fedavg", "hours"), changes={"rounds": 65})
    [experiment] = study.experiments()
    write_run(tmp_path, experiment, ACCURACIES[:12], 60)
    assert math.isnan(compare(study, tmp_path).cells[0][0].results[0].value)
