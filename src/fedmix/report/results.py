"""The table of results: one row per group, mean ± sample deviation over its runs."""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedmix.report.groups import Group, grouped
from fedmix.report.load import HIGHER_IS_BETTER, RunRecord
from fedmix.report.metrics import Array

if TYPE_CHECKING:
    from rich.table import Table as RichTable

TEN = 10


@dataclass(frozen=True)
class Spread:
    """Mean and sample deviation (none for a single value) of some values; both None where there is
    no value.
    """

    mean: float | None
    deviation: float | None

    @staticmethod
    def of(values: Sequence[float]) -> "Spread":
        """Mean and deviation without NaN values; an infinite value makes the mean infinite."""
        known = [value for value in values if not math.isnan(value)]
        if not known:
            return Spread(None, None)
        if not all(map(math.isfinite, known)):
            return Spread(math.inf, None)
        return Spread(
            float(np.mean(known)), float(np.std(known, ddof=1)) if len(known) > 1 else None
        )

    def text(self, scale: float = 1.0, decimals: int | None = None) -> str:
        """`97.1 ± 0.4`; three digits that count unless told how many decimals.

        A deviation of exactly zero is left out.
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
class Table:
    """Rows of results, for the terminal, for a page and as CSV."""

    score: str | None
    rows: tuple[Row, ...]

    @property
    def caption(self) -> str:
        """What the numbers are."""
        what = {
            "accuracy": "Test accuracy in %",
            "mse": "Mean squared error on test data (lower is better)",
            None: "No score yet",
        }
        return (
            f"{what[self.score]}; mean ± sample deviation over seeds. Last ten: mean of the "
            "last ten evaluations"
        )

    @property
    def headers(self) -> list[str]:
        """The columns; rounds to target only if there is a target."""
        targets = {row.target for row in self.rows}
        [target] = targets if len(targets) == 1 else ["target"]
        name = (
            target
            if isinstance(target, str)
            else None
            if target is None
            else self._score_text(target)
        )
        return [
            "",
            "runs",
            "last",
            "best",
            "last ten",
            *([] if name is None else [f"rounds to {name}"]),
            "seconds",
            "MB up",
            "MB down",
        ]

    def cells(self, row: Row) -> list[str]:
        """A row as text, one cell for each header."""
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
            *(
                [self._target_text(row)]
                if any(other.target is not None for other in self.rows)
                else []
            ),
            row.seconds.text(),
            row.bytes_up.text(1e-6),
            row.bytes_down.text(1e-6),
        ]

    def csv(self) -> str:
        """Plain numbers with a mean and a deviation column for each quantity."""
        spreads = ("last", "best", "last_ten", "to_target", "seconds", "bytes_up", "bytes_down")
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        header = [name for spread in spreads for name in (spread, f"{spread}_deviation")]
        writer.writerow(["label", "score", "runs", "finished", "target", "reached", *header])
        for row in self.rows:
            label = (
                f"'{row.label}" if row.label[:1] in "=+-@" else row.label
            )  # else a spreadsheet would run it
            numbers = [
                n
                for spread in spreads
                for n in (getattr(row, spread).mean, getattr(row, spread).deviation)
            ]
            writer.writerow(
                [label, self.score, row.runs, row.finished, row.target, row.reached, *numbers]
            )
        return out.getvalue()

    def rich(self) -> "RichTable":
        """For the terminal."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table as RichTable
        from rich.text import Text

        drawn = RichTable(caption=self.caption, caption_justify="left", box=SIMPLE_HEAD, padding=0)
        for i, header in enumerate(self.headers):
            # Where it is narrow, labels are folded and numbers kept whole.
            drawn.add_column(
                "\n".join(header.split(" ", 1)),
                justify="right" if i else "left",
                overflow="fold",
                no_wrap=bool(i),
            )
        for row in self.rows:
            label, *numbers = self.cells(row)
            drawn.add_row(
                Text(label), *(number.replace(" ± ", "±") for number in numbers)
            )  # in a Text, brackets are no markup
        return drawn

    def _score_text(self, value: float) -> str:
        return f"{100 * value:g} %" if self.score == "accuracy" else f"{value:g}"

    def _target_text(self, row: Row) -> str:
        if row.target is None:
            return "–"
        share = f"({row.reached}/{row.runs})" if 0 < row.reached < row.runs else ""
        same = len({other.target for other in self.rows}) == 1
        to = "" if same else f" to {self._score_text(row.target)}"
        return f"{row.to_target.text(decimals=0) if row.reached else 'never'}{to} {share}".strip()


def table(runs: Sequence[RunRecord]) -> Table:
    """The table of these runs."""
    return table_of(grouped(runs))


def table_of(groups: Sequence[Group]) -> Table:
    """The table of these groups."""
    score = next((run.score for group in groups for run in group.runs if run.score), None)
    return Table(score, tuple(_row(group) for group in groups))


def rounds_to_target(run: RunRecord) -> float:
    """The first evaluated round at or past the target; nan if there was none."""
    if run.score is None or run.target is None:
        return math.nan
    scores = run.metrics[run.score]
    past = scores >= run.target if HIGHER_IS_BETTER[run.score] else scores <= run.target
    reached = run.metrics["round"][past & np.isfinite(scores)]
    return float(reached[0]) if len(reached) else math.nan


def _row(group: Group) -> Row:
    runs = group.runs
    to_target = [rounds_to_target(run) for run in runs]
    last, best, last_ten = (
        Spread.of(values) for values in zip(*(scores(run) for run in runs), strict=True)
    )
    return Row(
        label=group.label,
        runs=len(runs),
        finished=sum(run.finished for run in runs),
        target=group.target,
        last=last,
        best=best,
        last_ten=last_ten,
        to_target=Spread.of(to_target),
        reached=sum(not math.isnan(value) for value in to_target),
        seconds=_final(runs, "seconds"),
        bytes_up=_final(runs, "bytes_up"),
        bytes_down=_final(runs, "bytes_down"),
    )


def scores(run: RunRecord) -> tuple[float, float, float]:
    """Last, best, and mean of the last ten evaluations."""
    if run.score is None:
        return math.nan, math.nan, math.nan
    known: Array = run.metrics[run.score]
    known = known[~np.isnan(known)]
    finite = known[np.isfinite(known)]
    best = (
        math.inf
        if not len(finite)
        else float(finite.max() if HIGHER_IS_BETTER[run.score] else finite.min())
    )
    return float(known[-1]), best, float(known[-TEN:].mean())


def _final(runs: Sequence[RunRecord], name: str) -> Spread:
    """What their last rounds say."""
    return Spread.of([float(run.metrics[name][-1]) if run.rounds else math.nan for run in runs])
