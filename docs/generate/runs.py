"""The published runs, chosen by what they change of a preset, and numbers of several seeds."""

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from fedmix.core.files import flat, printable
from fedmix.experiment.presets import experiment
from fedmix.experiment.spec import HOW, Experiment
from fedmix.paper import TABLES
from fedmix.paper.base import Part
from fedmix.paper.comparison import Compared, Difference, Result
from fedmix.paper.metrics import ROUNDS, Metric
from fedmix.report.load import RunRecord, load
from fedmix.runs.failure import Failure, failure_of
from fedmix.runs.store import Packed, packed_in

STORE = Path(__file__).parents[1] / "results"
ENGINE = ("engine.device", "engine.precision")
UNTOLD = re.compile(r" --(?:quiet|(?:seeds?|jobs) \d+|rows [\w,+-]+)")  # of a command
ROWS = re.compile(r"(?<= --rows )[\w,+-]+")
SUMMARY = "Seeds, commands, commits and machines"

LAST_TEN = Metric("mean of the last ten tests", lambda run, _: 100 * run.scores.last_ten)
LAST = Metric("last test", lambda run, _: 100 * run.scores.last)
BEST = Metric("best test", lambda run, _: 100 * run.scores.best)
TO_TARGET = replace(ROUNDS, title="rounds to the target")


def between(first: int, last: int) -> Metric:
    """Return the mean of the tests in some rounds as a metric."""

    def mean(run: RunRecord, _: object) -> float:
        rounds, tests = run.metrics["round"], run.metrics["accuracy"]
        return 100 * float(tests[(rounds >= first) & (rounds <= last)].mean())

    return Metric(f"rounds {first} to {last}", mean)


@dataclass(frozen=True)
class Published:
    """A published run: its record, or how it failed."""

    packed: Packed
    seed: int
    engine: tuple[str, ...]
    record: RunRecord | None
    failure: Failure | None

    @property
    def environment(self) -> Mapping[str, Any]:
        """Where and how it ran."""
        found: Mapping[str, Any] = self.packed.content["environment"]
        return found


@dataclass(frozen=True)
class Row:
    """Runs of one data set that differ in their seed, as a row of a table.

    Attributes:
        title: Its title.
        data: The data set, which is a preset.
        algorithm: The algorithm.
        settings: What differs from the preset; `seeds` among it chooses seeds. Where the device or
            the precision is not told, those with which most seeds were run are taken.
        paper: Table, row and column of the paper's number, if there is one.
    """

    title: str
    data: str
    algorithm: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    paper: tuple[str, str, str] | None = None

    @property
    def runs(self) -> list[Published]:
        """The runs, by seed; none if no such run is published.

        Raises:
            LookupError: It is not clear which runs are meant.
        """
        seeds = self.settings.get("seeds")
        said = {path: printable(v) for path, v in self.settings.items() if path != "seeds"}
        engine = {path: said.pop(path) for path in ENGINE if path in said}
        key = self.data, self.algorithm, frozenset(said.items())
        alike = [
            run
            for run in published().get(key, ())
            if all(run.engine[ENGINE.index(path)] == value for path, value in engine.items())
        ]
        made = defaultdict(set)
        for run in alike:
            made[run.engine].add(run.seed)
        counts = sorted(map(len, made.values()), reverse=True)
        if counts[1:2] == counts[:1] and len(set().union(*made.values())) < sum(counts):
            raise LookupError(f"{key}: say which of {list(made)} is meant")
        alike.sort(key=lambda run: len(made[run.engine]))
        by_seed = sorted({run.seed: run for run in alike}.items())
        return [run for seed, run in by_seed if seeds is None or seed in seeds]

    def cell(self, metric: Metric) -> Compared:
        """Return a number of all seeds."""
        results = tuple(
            Result(run.seed, metric.of(run.record, "last") if run.record else math.nan, run.failure)
            for run in self.runs
        )
        part = Part(self.algorithm, self.title)
        return Compared(part, part, metric, None, results)

    def theirs(self, suffix: str = "") -> str:
        """Return the paper's number, or nothing.

        Args:
            suffix: What the column's name has more, such as "-rounds".
        """
        if self.paper is None:
            return ""
        table, algorithm, column = self.paper
        known = [part.name for part in TABLES[table].columns]
        if f"{column}{suffix}" not in known:
            return ""
        number = TABLES[table].number(algorithm, f"{column}{suffix}")
        return "" if number is None else f"{number:.1f}".removesuffix(".0" if suffix else "")


@cache
def published() -> Mapping[tuple[str, str, frozenset[tuple[str, str]]], list[Published]]:
    """Return all published runs by data set, algorithm and what differs from the preset."""
    found = defaultdict(list)
    for packed in packed_in(STORE):
        of = Experiment.of(packed.content["experiment"], str(packed.path))
        ours = dict(flat(of.values()))
        preset = dict(flat(experiment(of.data.name, of.algorithm, seed=of.seed).values()))
        differing = frozenset(
            (path, ours.get(path, "None"))
            for path in {*ours, *preset}
            if ours.get(path) != preset.get(path) and path not in (*HOW, *ENGINE)
        )
        failed = packed.content.get("failure")
        run = Published(
            packed,
            of.seed,
            tuple(ours[path] for path in ENGINE),
            None if failed else load(packed),
            failure_of(failed, packed.path) if failed else None,
        )
        found[of.data.name, of.algorithm, differing].append(run)
    return found


def difference(first: Row, second: Row, metric: Metric) -> Difference:
    """Return the difference of two rows over the seeds that both have."""
    a, b = first.cell(metric), second.cell(metric)
    both = {r.seed for r in a.results} & {r.seed for r in b.results}
    one, other = (replace(c, results=tuple(r for r in c.results if r.seed in both)) for c in (a, b))
    return Difference(one, other)


def records(rows: Sequence[Row], metric: Metric) -> str:
    """Return a fold-out with each seed's number, and where and how the runs were made.

    Commands that differ in their rows and seeds alone are told as one.
    """
    values = [f"- {row.title}: {_values(row, metric)}" for row in rows if len(row.runs) > 1]
    made: dict[str, dict[tuple[str, ...], Made]] = {}
    for row in rows:
        for run in row.runs:
            said = run.environment
            precision = run.engine[1] if "cuda" in said["device"] else "float32"
            machine = f"{machine_of(said['device'])}, {precision}, torch {said['torch']}"
            what, *options = re.split(r" (?=--)", UNTOLD.sub("", said["command"]))
            key = said["commit"][:7], said["started"][:10], what, *sorted(options)
            one = made.setdefault(machine, {}).setdefault(key, Made())
            for named in ROWS.findall(said["command"]):
                one.rows |= dict.fromkeys(named.split(","))
            one.seeds.setdefault(row.title, []).append(str(run.seed))
    lines = ['<details markdown="1">', f"<summary>{SUMMARY}</summary>", ""]
    if values:
        lines += [f"By seed, {metric.title}:", "", *values, ""]
    for machine, commands in made.items():
        lines += [f"On {machine}:", "", "| made at | by | row: seeds |", "|---|---|---|"]
        lines += [one.line(*key) for key, one in commands.items()]
        lines.append("")
    return "\n".join([*lines, "</details>"])


@dataclass
class Made:
    """Runs that were made at one commit by commands that differ in rows and seeds.

    Attributes:
        rows: The rows that the commands name.
        seeds: Seeds by row of the table that is shown.
    """

    rows: dict[str, None] = field(default_factory=dict)
    seeds: dict[str, list[str]] = field(default_factory=dict)

    def line(self, commit: str, day: str, what: str, *options: str) -> str:
        """Return the line of a table."""
        rows = [f"--rows {','.join(self.rows)}"] if self.rows else []
        seeds = "; ".join(f"{title}: {', '.join(some)}" for title, some in self.seeds.items())
        return f"| {commit}, {day} | `{' '.join((what, *rows, *options))}` | {seeds} |"


def _values(row: Row, metric: Metric) -> str:
    """Return the number of each seed, or how its run failed."""
    return ", ".join(
        f"{result.failure.kind} in round {result.failure.round}"
        if result.failure
        else metric.text(result.value)
        for result in row.cell(metric).results
    )


def machine_of(device: str) -> str:
    """Return the processor or GPU that an environment names."""
    named = re.search(r"\((.*)\)", device)
    return re.sub(r"\b1 threads", "1 thread", named[1]) if named else device
