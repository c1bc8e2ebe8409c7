"""The results of runs: one row per group, mean ± sample deviation over its runs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedmix.privacy.accounting import upwards
from fedmix.report.groups import Group, grouped
from fedmix.report.load import RunRecord
from fedmix.report.tables import Cell, Column, Table
from fedmix.runs.summary import HIGHER_IS_BETTER, TEN

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


class Marked(NamedTuple):
    """A cell of a page's table: its column, text and value, and whether it is the column's best."""

    title: str
    text: str
    value: float | None
    best: bool


@dataclass(frozen=True)
class Row:
    """The results of a group.

    Bytes and scores are in their own units; `to_target` is over the `reached` runs only. `tests` is
    the number of evaluations of the run that has fewest, of those that have any. `epsilon` is the
    largest ε of all that leaves clients; None if a run has none.
    """

    label: str
    runs: int
    finished: int
    tests: int
    target: float | None
    last: Spread
    best: Spread
    last_ten: Spread
    to_target: Spread
    reached: int
    seconds: Spread
    bytes_up: Spread
    bytes_down: Spread
    epsilon: float | None = None

    def whole(self, name: str) -> bool:
        """Whether all runs are done and, if it is of rounds to the target, got there."""
        reached = self.runs if name != "to_target" else self.reached
        return self.finished == reached == self.runs


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
        same = self._one_target
        names = ["", "runs", "last", "best", self._last_ten]
        if targets:
            names.append(f"rounds to {self._score_text(targets[0]) if same else 'target'}")
        names += ["seconds", "MB up", "MB down"]
        private = any(row.epsilon is not None for row in self.rows)
        if private:
            names.append("ε of all")
        return Table(
            [
                Column(name, right=bool(i), wrap=not i, stacked="\n".join(name.split(" ", 1)))
                for i, name in enumerate(names)
            ],
            [
                [
                    *self._cells(row, targets=bool(targets), same=same),
                    *([_epsilon_text(row.epsilon)] if private else []),
                ]
                for row in self.rows
            ],
            caption=f"{CAPTIONS[self.score]}; mean ± sample deviation over seeds. "
            f"{self._last_ten.capitalize()}: mean of {self.of_which}",
            gap=1,
        )

    def __repr__(self) -> str:
        return self.table().markdown()

    def _repr_html_(self) -> str:
        return str(self.table().html())

    def marked(self) -> list[list[Marked]]:
        """Return the cells of the table without the labels, with their values and marks.

        The best is the best mean of a score, or the fewest rounds to a target that all have, among
        groups that are finished.
        """
        table, found = self.table(), []
        targets = any(row.target is not None for row in self.rows)
        names = ["runs", *(name for name in SPREADS if targets or name != "to_target")]
        names += ["epsilon"] if len(table.titles) > len(names) + 1 else []
        for row, (_, *texts) in zip(self.rows, table.rows, strict=True):
            cells = zip(table.titles[1:], map(str, texts), names, strict=True)
            found.append(
                [Marked(t, text, _mean(row, n), self._is_best(row, n)) for t, text, n in cells]
            )
        return found

    def ranked(self) -> list[int]:
        """Return the numbers of the rows with a score, from best to worst by the last ten."""
        more = HIGHER_IS_BETTER.get(self.score or "", True)
        known = {
            i: v for i, row in enumerate(self.rows) if (v := _mean(row, "last_ten")) is not None
        }
        return sorted(known, key=lambda i: -known[i] if more else known[i])

    def _is_best(self, row: Row, name: str) -> bool:
        if name not in SPREADS[:4] or _mean(row, name) is None:
            return False
        if name == "to_target" and not self._one_target:
            return False
        done = [_mean(other, name) for other in self.rows if other.whole(name)]
        known = [value for value in done if value is not None]
        more = name != "to_target" and HIGHER_IS_BETTER.get(self.score or "", True)
        best = (max if more else min)(known, default=None)
        return len(self.rows) > 1 and row.whole(name) and _mean(row, name) == best

    @property
    def _one_target(self) -> bool:
        return len({row.target for row in self.rows}) == 1

    @property
    def of_which(self) -> str:
        """Say of which evaluations the mean of the last ten is."""
        if self._last_ten != "last ten":
            return "all evaluations"
        fewer = any(0 < row.tests < TEN for row in self.rows)
        return f"the last ten evaluations{', or of all where there are fewer' if fewer else ''}"

    @property
    def _last_ten(self) -> str:
        """Return the title of the mean of the last ten: `last 5` if all have five only."""
        counts = {min(row.tests, TEN) for row in self.rows if row.tests}
        [count] = counts if len(counts) == 1 else [TEN]
        return "last ten" if count == TEN else f"last {count}"

    def numbers(self) -> Table:
        """Return the results in their own units, with mean and deviation of each quantity."""
        pairs = [name for spread in SPREADS for name in (spread, f"{spread}_deviation")]
        names = ["label", "score", "runs", "finished", "target", "reached", *pairs, "epsilon"]
        rows: list[list[Cell]] = []
        for row in self.rows:
            spreads: list[Spread] = [getattr(row, name) for name in SPREADS]
            about = [row.label, self.score, row.runs, row.finished, row.target, row.reached]
            rows.append(
                [
                    *about,
                    *(n for spread in spreads for n in (spread.mean, spread.deviation)),
                    row.epsilon,
                ]
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
            *(spread.text(scale, decimals) for spread in (row.last, row.best)),
            row.last_ten.text(scale, decimals) + self._of_fewer(row),
            *([self._target_text(row, same=same)] if targets else []),
            row.seconds.text(),
            row.bytes_up.text(1e-6),
            row.bytes_down.text(1e-6),
        ]

    def _score_text(self, value: float) -> str:
        return f"{100 * value:g} %" if self.score == "accuracy" else f"{value:g}"

    def _of_fewer(self, row: Row) -> str:
        """Say how many evaluations there were, if fewer than ten and the title does not say it."""
        told = not 0 < row.tests < TEN or self._last_ten != "last ten"
        return "" if told else f" (of {row.tests})"

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
    epsilons = [run.epsilon for run in runs if run.epsilon is not None]
    last, best, last_ten, to_target = map(
        Spread.of, zip(*(run.scores for run in runs), strict=True)
    )
    return Row(
        label=group.label,
        runs=len(runs),
        finished=sum(run.finished for run in runs),
        tests=min((count for run in runs if (count := _tests(run))), default=0),
        target=group.target,
        last=last,
        best=best,
        last_ten=last_ten,
        to_target=to_target,
        reached=sum(not math.isnan(run.scores.to_target) for run in runs),
        seconds=_final(runs, "seconds"),
        bytes_up=_final(runs, "bytes_up"),
        bytes_down=_final(runs, "bytes_down"),
        epsilon=max(epsilons) if len(epsilons) == len(runs) else None,
    )


def _tests(run: RunRecord) -> int:
    return int(np.count_nonzero(~np.isnan(run.metrics[run.score]))) if run.score else 0


def _mean(row: Row, name: str) -> float | None:
    """Return the mean of a quantity by its name, or the number of runs; None if not finite."""
    value = getattr(row, name)
    mean = value.mean if isinstance(value, Spread) else value
    return mean if mean is not None and math.isfinite(mean) else None


def _epsilon_text(epsilon: float | None) -> str:
    return "none" if epsilon is None else upwards(epsilon)


def _final(runs: Sequence[RunRecord], name: str) -> Spread:
    """Return the spread of a metric in the last round of each run."""
    return Spread.of([float(run.metrics[name][-1]) if run.rounds else math.nan for run in runs])
