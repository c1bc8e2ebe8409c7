"""Our results beside the paper's: cells, whether the order agrees, and tests of differences."""

import itertools
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fedmix.core.errors import BadInput
from fedmix.core.files import printable
from fedmix.experiment.values import section_of
from fedmix.paper.base import Part
from fedmix.paper.metrics import ACCURACY, HEAD, ROUNDS, Metric, Protocol
from fedmix.paper.outcome import Outcome, outcome
from fedmix.paper.study import Study
from fedmix.report.files import read_toml
from fedmix.report.metrics import Array
from fedmix.report.paired import Tested, holm, paired
from fedmix.report.results import Spread
from fedmix.runs.failure import Failure
from fedmix.runs.store import packed_in

FEMNIST = (
    "FEMNIST: this project's documented numbers come from 328 complete LEAF writers, a biased "
    "part: they have 42 to 356 images "
    "(mean 165; all of LEAF: 227), writers with about 300 to 400 are missing, and 71 % are digits "
    "(all of EMNIST: about 50 %)."
)


@dataclass(frozen=True)
class Result:
    """The result of one seed: a number, or how its run failed.

    The number is NaN if it was not measured or not run, and infinite if the target was not reached.
    """

    seed: int
    value: float
    failure: Failure | None = None


@dataclass(frozen=True)
class Compared:
    """The results of a row and a column over all seeds, and the paper's number."""

    row: Part
    column: Part
    metric: Metric
    paper: float | None
    results: tuple[Result, ...]

    @property
    def spread(self) -> Spread:
        """Mean and sample deviation over the seeds that have a number."""
        return Spread.of([r.value for r in self.results if math.isfinite(r.value)])

    @property
    def standing(self) -> float:
        """The value that ranks the cell: its mean, or NaN if nothing ran.

        It is the worst value if a seed failed or did not reach the target.
        """
        if any(r.failure or math.isinf(r.value) for r in self.results):
            return self.metric.worst
        return math.nan if self.spread.mean is None else self.spread.mean

    def text(self) -> str:
        """Return our result, such as `81.2 ± 0.4`, and what happened to the other seeds."""
        known = sum(math.isfinite(r.value) for r in self.results)
        others = self._failures() | {"never": sum(math.isinf(r.value) for r in self.results)}
        others["not run"] = len(self.results) - known - sum(others.values())
        told = [(what, count) for what, count in others.items() if count]
        counted = "; ".join(f"{count} {what}" for what, count in told)
        if known:
            return self.spread.text(decimals=self.metric.decimals) + (
                f" ({counted})" if told else ""
            )
        [(what, _), *more] = told
        return counted if more else "–" if what == "not run" else what

    def _failures(self) -> dict[str, int]:
        """Count the failed seeds by how they failed, such as `diverged in rounds 2, 7`."""
        told = {}
        for kind in ("diverged", "collapsed"):
            rounds = [r.failure.round for r in self.results if r.failure and r.failure.kind == kind]
            each = sorted(set(rounds))
            if rounds:
                told[
                    f"{kind} in round{'s' if len(each) > 1 else ''} {', '.join(map(str, each))}"
                ] = len(rounds)
        return told

    def paper_text(self) -> str:
        """Return the paper's number as text."""
        return "–" if self.paper is None else self.metric.text(self.paper)


@dataclass(frozen=True)
class Difference:
    """The difference of two rows in a column, over the seeds that both have, and a paired t-test.

    `corrected` is p after Holm's correction for all tests of the comparison; None if there is one
    test only.
    """

    first: Compared
    second: Compared
    corrected: float | None = None

    @property
    def differences(self) -> list[float]:
        """First minus second, by seed."""
        pairs = zip(self.first.results, self.second.results, strict=True)
        return [
            a.value - b.value for a, b in pairs if math.isfinite(a.value) and math.isfinite(b.value)
        ]

    def test(self) -> Tested | None:
        """Return the result of the test; None if there is nothing to test."""
        return paired(self.differences)

    def text(self) -> str:
        """Return the difference in a sentence."""
        said = f"{self.first.column.title}: {self.first.row.title} − {self.second.row.title}"
        values, a, b = self.differences, self.first.paper, self.second.paper
        theirs = f"; the paper: {a - b:+.1f}" if a is not None and b is not None else ""
        if not values:
            return f"{said}: no seed has both{theirs}"
        mean = f"{said} = {np.mean(values):+.1f}"
        if (tested := self.test()) is not None:
            low, high, p = tested
            how = (
                f"95 % interval {low:+.1f} to {high:+.1f}, paired t-test over {len(values)} "
                f"seeds, p = {p:.2g}"
                + ("" if self.corrected is None else f", by Holm's method {self.corrected:.2g}")
            )
        else:
            how = (
                "one seed: no test"
                if len(values) == 1
                else f"the same in all {len(values)} seeds: no test"
            )
        return f"{mean} ({how}{theirs})"


@dataclass(frozen=True)
class Comparison:
    """The results of a study beside the paper's.

    Attributes:
        study: The study.
        protocol: Which score of a run counts.
        cells: The cells by row, in the order of the columns.
        clients: Sizes of the clients of each natural data set, by seed.
        guessing: Runs that ended without having learned.
        lost: How runs without a number ended, by run.
        absent: What is missing, if nothing has run.
    """

    study: Study
    protocol: Protocol
    cells: tuple[tuple[Compared, ...], ...]
    clients: tuple[tuple[str, list[Array]], ...] = ()
    guessing: tuple[str, ...] = ()
    lost: Mapping[str, Failure] = field(default_factory=dict)
    absent: str = ""

    def order(self, column: int) -> tuple[int, int]:
        """Count the pairs of rows in a column that are in the paper's order, and all pairs.

        Only pairs of the same data set count, that differ in the paper and for which we have
        results.
        """
        column_cells = [row[column] for row in self.cells]
        told = [
            (c.row.preset, c.paper, c.standing)
            for c in column_cells
            if c.paper is not None and not math.isnan(c.standing)
        ]
        pairs = [
            (ours_a, ours_b)
            for (data_a, a, ours_a), (data_b, b, ours_b) in itertools.permutations(told, 2)
            if data_a == data_b and a > b and not (math.isinf(ours_a) and math.isinf(ours_b))
        ]
        return sum(ours_a > ours_b for ours_a, ours_b in pairs), len(pairs)

    def differences(self) -> list[Difference]:
        """Return the differences of the table's pairs of rows, in every column of accuracies."""
        rows = {cells[0].row.name: cells for cells in self.cells}
        found = [
            Difference(a, b)
            for first, second in self.study.table.pairs
            if first in rows and second in rows
            for a, b in zip(rows[first], rows[second], strict=True)
            if a.metric in (ACCURACY, HEAD)
            and any(map(_ran, a.results))
            and any(map(_ran, b.results))
        ]
        return corrected(found)

    def notes(self) -> list[str]:
        """Return notes on the table, its data, and runs that failed, guess or are missing."""
        said = list(self.study.notes)
        if (apart := self._rounds_between_tests()) > 1:
            said.append(
                f"Rounds to the target are exact to {apart} where tests are {apart} rounds apart; "
                "evaluate_every=1 tests each."
            )
        for name, sizes in self.clients:
            number, each = len(sizes[0]), np.concatenate(sizes)
            drawn = f", drawn anew by each of {len(sizes)} seeds," if len(sizes) > 1 else ""
            few, many, mean = each.min(), each.max(), each.mean()
            said.append(
                f"{name}: {number} clients{drawn} with {few:.0f} to {many:.0f} training samples "
                f"(mean {mean:.0f})."
            )
        if self.uses("femnist"):
            said.append(FEMNIST)
        if self.guessing:
            said.append(
                "Hardly better than a guess, as 'warning' in their summary.json says: "
                f"{', '.join(self.guessing)}."
            )
        said += [
            f"{run} {failure.kind} in round {failure.round}: {failure.reason}."
            for run, failure in self.lost.items()
        ]
        if self.absent:
            said.append(f"There is {self.absent}.")
        return said

    def _rounds_between_tests(self) -> int:
        """Return the most rounds between two tests, in cells that count rounds."""
        counted = [c for row in self.cells for c in row if c.metric == ROUNDS]
        seed, *_ = self.study.seeds
        return max(
            (
                self.study.experiment(c.row.name, c.column.name, seed).evaluate_every
                for c in counted
            ),
            default=1,
        )

    def uses(self, data: str) -> bool:
        """Whether a cell uses that data set."""
        table = self.study.table
        return any(
            (c.row.preset or c.column.preset or table.preset) == data
            for row in self.cells
            for c in row
        )


def corrected(differences: Sequence[Difference]) -> list[Difference]:
    """Return the differences with corrected p-values; a single test is not corrected."""
    tested = {i: test.p for i, d in enumerate(differences) if (test := d.test()) is not None}
    found = list(differences)
    if len(tested) > 1:
        for i, p in zip(tested, holm(list(tested.values())), strict=True):
            found[i] = replace(found[i], corrected=p)
    return found


def _ran(result: Result) -> bool:
    return result.failure is not None or not math.isnan(result.value)


def compare(study: Study, out: Path, protocol: Protocol = "last") -> Comparison:
    """Read the results of a study's runs.

    Args:
        study: The study.
        out: Folder of the run folders.
        protocol: Which score of a run counts.

    Raises:
        BadInput: A run folder is damaged.
    """
    seen: dict[str, Outcome] = {}

    def of(row: Part, column: Part, metric: Metric, seed: int) -> Result:
        experiment = study.experiment(row.name, column.name, seed)
        if experiment.id not in seen:
            seen[experiment.id] = outcome(experiment, out)
        found = seen[experiment.id]
        return Result(
            seed, metric.of(found.record, protocol) if found.record else math.nan, found.failure
        )

    table = study.table

    def cell(row: Part, column: Part) -> Compared:
        metric = table.measured(row, column)
        results = tuple(of(row, column, metric, seed) for seed in study.seeds)
        return Compared(row, column, metric, table.number(row.name, column.name), results)

    cells = tuple(tuple(cell(row, column) for column in table.columns) for row in table.rows)
    guessing = tuple(name for name, found in seen.items() if found.guesses)
    lost = {name: found.failure for name, found in seen.items() if found.failure}
    absent = "" if any(found.known for found in seen.values()) else _absent(study, out)
    return Comparison(
        study, protocol, cells, _natural_clients(list(seen.values())), guessing, lost, absent
    )


def _absent(study: Study, out: Path) -> str:
    """Say that none of a study's runs is in a folder, and on which device there are some."""
    experiments = study.experiments()
    for device in sorted(_devices(out)):
        if any(outcome(e.with_settings({"engine.device": device}), out).known for e in experiments):
            return (
                f"no finished run of these settings under {out}, but with --device "
                f"{printable(device)} there is"
            )
    return f"no finished run of these settings under {out}; leave --no-run out to run them"


def _devices(out: Path) -> set[str]:
    """Return the devices of the runs in a folder."""
    specs = [run.content["experiment"] for run in packed_in(out)]
    for path in out.glob("*/experiment.toml"):
        with suppress(BadInput):  # a file that cannot be read is not of these runs
            specs.append(read_toml(path))
    return {str(section_of(spec, "engine").get("device")) for spec in specs}


def _natural_clients(outcomes: Sequence[Outcome]) -> tuple[tuple[str, list[Array]], ...]:
    """Return client sizes of the data sets with natural clients, by seed.

    They are shown because they depend on the files at hand.
    """
    found: dict[str, dict[str, Array]] = {}
    for one in outcomes:
        name = one.record.settings["data.name"] if one.record else ""
        if name in ("femnist", "shakespeare") and one.record and one.record.clients:
            found.setdefault(name, {}).setdefault(one.record.seed, one.record.clients.sizes)
    return tuple((name, list(by_seed.values())) for name, by_seed in found.items())
