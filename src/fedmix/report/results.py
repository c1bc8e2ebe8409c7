"""The results of runs: one row per group, mean ± sample deviation over its runs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedmix.report.groups import Group, grouped
from fedmix.report.load import RunRecord
from fedmix.report.tables import Cell, Column, Table

CAPTIONS = {
    "accuracy": "Test accuracy in %",
    "mse": "Mean squared error on test data (lower is better)",
    None: "No score yet",
}
SPREADS = ("last", "best", "last_ten", "to_target", "seconds", "bytes_up", "bytes_down")


@dataclass(frozen=True)
class Spread:
    """Mean and sample deviation of some values.

    A single value has no deviation (None); without values, both are None.
    """

    mean: float | None
    deviation: float | None

    @staticmethod
    def of(values: Sequence[float]) -> "Spread":
        """Return the spread of values; NaN is ignored, and infinity makes the mean infinite."""
        known = [value for value in values if not math.isnan(value)]
        if not known:
            return Spread(None, None)
        if not all(map(math.isfinite, known)):
            return Spread(math.inf, None)
        return Spread(
            float(np.mean(known)), float(np.std(known, ddof=1)) if len(known) > 1 else None
        )

    def text(self, scale: float = 1.0, decimals: int | None = None) -> str:
        """Return text such as `97.1 ± 0.4`.

        It has three significant digits unless `decimals` is given. A deviation of exactly zero is
        left out.
        """
        if self.mean is None:
            return "–"
        if not math.isfinite(self.mean):
            return "not finite"
        mean = self.mean * scale
        if decimals is None:
            decimals = max(0, 2 - math.floor(math.log10(abs(mean)))) if mean else 0
        return f"{mean:.{decimals}f}" + (
            "" if not self.deviation else f" ± {self.deviation * scale:.{decimals}f}"
        )


@dataclass(frozen=True)
class Row:
    """The results of a group.

    Bytes and scores are in their own units; `to_target` is over the `reached` runs only.
    """

    label: str
    runs: int
    finished: int
    target: float | None
    last: Spread
    best: Spread
    last_ten: Spread
    to_target: Spread
    reached: int
    seconds: Spread
    bytes_up: Spread
    bytes_down: Spread


@dataclass(frozen=True)
class Results:
    """Rows of results that measure the same score."""

    score: str | None
    rows: tuple[Row, ...]

    @staticmethod
    def of(groups: Sequence[Group]) -> "Results":
        """Return the results of these groups."""
        score = next((run.score for group in groups for run in group.runs if run.score), None)
        return Results(score, tuple(_row(group) for group in groups))

    def table(self) -> Table:
        """Return the results in readable units; rounds to the target only if there is a target."""
        targets = [row.target for row in self.rows if row.target is not None]
        same = len(targets) == len(self.rows) and len(set(targets)) == 1
        names = ["", "runs", "last", "best", "last ten"]
        if targets:
            names.append(f"rounds to {self._score_text(targets[0]) if same else 'target'}")
        names += ["seconds", "MB up", "MB down"]
        return Table(
            [
                Column(name, right=bool(i), wrap=not i, stacked="\n".join(name.split(" ", 1)))
                for i, name in enumerate(names)
            ],
            [self._cells(row, targets=bool(targets), same=same) for row in self.rows],
            caption=f"{CAPTIONS[self.score]}; mean ± sample deviation over seeds. Last ten: mean "
            "of the last ten evaluations",
            gap=1,
        )

    def numbers(self) -> Table:
        """Return the results in their own units, with mean and deviation of each quantity."""
        pairs = [name for spread in SPREADS for name in (spread, f"{spread}_deviation")]
        names = ["label", "score", "runs", "finished", "target", "reached", *pairs]
        rows: list[list[Cell]] = []
        for row in self.rows:
            spreads: list[Spread] = [getattr(row, name) for name in SPREADS]
            about = [row.label, self.score, row.runs, row.finished, row.target, row.reached]
            rows.append(
                [*about, *(n for spread in spreads for n in (spread.mean, spread.deviation))]
            )
        return Table([Column(name) for name in names], rows)

    def _cells(self, row: Row, *, targets: bool, same: bool) -> list[Cell]:
        scale, decimals = (100.0, 1) if self.score == "accuracy" else (1.0, None)
        unfinished = row.runs - row.finished
        mark = (
            ""
            if not unfinished
            else " (unfinished)"
            if unfinished == row.runs
            else f" ({unfinished} unfinished)"
        )
        return [
            row.label + mark,
            str(row.runs),
            *(spread.text(scale, decimals) for spread in (row.last, row.best, row.last_ten)),
            *([self._target_text(row, same=same)] if targets else []),
            row.seconds.text(),
            row.bytes_up.text(1e-6),
            row.bytes_down.text(1e-6),
        ]

    def _score_text(self, value: float) -> str:
        return f"{100 * value:g} %" if self.score == "accuracy" else f"{value:g}"

    def _target_text(self, row: Row, *, same: bool) -> str:
        if row.target is None:
            return "–"
        share = f"({row.reached}/{row.runs})" if 0 < row.reached < row.runs else ""
        to = "" if same else f" to {self._score_text(row.target)}"
        return f"{row.to_target.text(decimals=0) if row.reached else 'never'}{to} {share}".strip()


def results_of(runs: Sequence[RunRecord]) -> Results:
    """Return the results of these runs, by group."""
    return Results.of(grouped(runs))


def _row(group: Group) -> Row:
    runs = group.runs
    last, best, last_ten, to_target = map(
        Spread.of, zip(*(run.scores for run in runs), strict=True)
    )
    return Row(
        label=group.label,
        runs=len(runs),
        finished=sum(run.finished for run in runs),
        target=group.target,
        last=last,
        best=best,
        last_ten=last_ten,
        to_target=to_target,
        reached=sum(not math.isnan(run.scores.to_target) for run in runs),
        seconds=_final(runs, "seconds"),
        bytes_up=_final(runs, "bytes_up"),
        bytes_down=_final(runs, "bytes_down"),
    )


def _final(runs: Sequence[RunRecord], name: str) -> Spread:
    """Return the spread of a metric in the last round of each run."""
    return Spread.of([float(run.metrics[name][-1]) if run.rounds else math.nan for run in runs])
