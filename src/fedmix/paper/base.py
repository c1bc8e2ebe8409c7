"""A table of the paper: rows and columns that each set a part of an experiment, and its numbers."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedmix.core.errors import BadInput
from fedmix.core.nearest import choice
from fedmix.experiment.presets import experiment
from fedmix.experiment.spec import Experiment
from fedmix.paper.metrics import ACCURACY, Metric, Protocol
from fedmix.runs.run import Run

TITLES = {
    "globalmix": "Global Mixup",
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "localmix": "LocalMix",
    "naivemix": "NaiveMix",
    "fedmix": "FedMix",
    "fedmix-logits": "FedMix, logits (not in the paper)",
    "randommix": "Mixup w/ random noise",
    "localmeans": "Mixup w/ local means",
    "localmix+prox": "FedProx + LocalMix",
    "naivemix+prox": "FedProx + NaiveMix",
    "fedmix+prox": "FedProx + FedMix",
    "hidden-naivemix": "NaiveMix, hidden states (k = 2)",
    "hidden-fedmix": "FedMix, hidden states (k = 2)",
}
PAIRS = (
    ("fedmix", "fedavg"),
    ("fedmix", "naivemix"),
    ("fedmix-logits", "fedavg"),
    ("fedmix-logits", "naivemix"),
)


@dataclass(frozen=True)
class Part:
    """A row or a column, and what it sets in the experiment and the measurement.

    Attributes:
        name: Its name on the command line.
        title: Its title.
        preset: Preset of the experiment.
        algorithm: Algorithm of the experiment.
        settings: Settings by dotted path.
        metric: What is measured.
        extra: Whether it is not in the paper, and runs only if it is asked for by name.
    """

    name: str
    title: str
    preset: str | None = None
    algorithm: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    metric: Metric | None = None
    extra: bool = False


@dataclass(frozen=True)
class PaperTable:
    """A table or figure of the paper.

    Attributes:
        name: Its name on the command line.
        title: Its title.
        source: The paper's label.
        rows: The rows.
        columns: The columns.
        paper: The paper's numbers by row, one for each column; None where it prints none. Empty if
            the table is not the paper's.
        notes: What a reader has to know.
        preset: Preset where neither row nor column sets one.
        algorithm: Algorithm where neither row nor column sets one.
        settings: Settings of all experiments; columns override them, and rows override columns.
        metric: Metric where neither row nor column sets one.
        pairs: Rows whose difference is tested.
        score: Which score of a run counts, unless another is asked for.
        after: Called with every finished run and the data folder, if a number needs more than
            metrics.
    """

    name: str
    title: str
    source: str
    rows: tuple[Part, ...]
    columns: tuple[Part, ...]
    paper: Mapping[str, tuple[float | None, ...]]
    notes: tuple[str, ...] = ()
    preset: str = "cifar10"
    algorithm: str = "fedmix"
    settings: Mapping[str, Any] = field(default_factory=dict)
    metric: Metric = ACCURACY
    pairs: tuple[tuple[str, str], ...] = PAIRS
    score: Protocol = "last"
    after: Callable[[Run, Path | None], None] | None = None

    def experiment(self, row: str, column: str, seed: int = 0) -> Experiment:
        """Return the experiment of a row and a column, given by name."""
        r, c = (
            next(p for p in parts if p.name == name)
            for parts, name in ((self.rows, row), (self.columns, column))
        )
        base = experiment(
            r.preset or c.preset or self.preset,
            r.algorithm or c.algorithm or self.algorithm,
            seed=seed,
        )
        return base.with_settings({**self.settings, **c.settings, **r.settings})

    def experiments(self, seed: int = 0) -> Iterator[Experiment]:
        """Yield every experiment of the table once."""
        found = {
            e.id: e
            for r in self.rows
            for c in self.columns
            for e in [self.experiment(r.name, c.name, seed)]
        }
        yield from found.values()

    def number(self, row: str, column: str) -> float | None:
        """Return the paper's number of a row and a column; None if it prints none."""
        at = [c.name for c in self.columns].index(column)
        return self.paper[row][at] if row in self.paper else None

    def measured(self, row: Part, column: Part) -> Metric:
        """Return what is measured in a row and a column."""
        return row.metric or column.metric or self.metric

    @property
    def varied(self) -> set[str]:
        """The settings in which its experiments differ on purpose."""
        return {path for part in (*self.rows, *self.columns) for path in part.settings}

    def select(self, rows: str | None, columns: str | None) -> "PaperTable":
        """Return the table with some rows and columns only.

        Args:
            rows: Names separated by commas; None for all rows that are not extra.
            columns: Names, or names of presets, separated by commas; None for all.

        Raises:
            BadInput: There is no such row or column, or a list is empty.
        """
        kept = _chosen(self, "row", [r for r in self.rows if rows is not None or not r.extra], rows)
        across = _chosen(self, "column", list(self.columns), columns)
        at = [self.columns.index(c) for c in across]
        numbers = {
            r.name: tuple(self.paper[r.name][i] for i in at) for r in kept if r.name in self.paper
        }
        return replace(self, rows=kept, columns=across, paper=numbers)


def _chosen(table: PaperTable, what: str, parts: list[Part], names: str | None) -> tuple[Part, ...]:
    if names is None:
        return tuple(parts)
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if not any(name in (part.name, part.preset) for part in parts):
            known = choice(name, [part.name for part in parts])
            raise BadInput(f"table {table.name} has no {what} {name!r}; {known}")
    if not wanted:
        raise BadInput(f"--{what}s is empty; name at least one, or leave it out for all")
    return tuple(part for part in parts if part.name in wanted or part.preset in wanted)


def algorithms(*names: str) -> tuple[Part, ...]:
    """Return a part for each algorithm.

    Beside FedMix comes fedmix-logits, which expands the logits, as an extra.
    """
    beside = ("fedmix-logits",) if "fedmix" in names else ()
    return tuple(
        Part(name, TITLES[name], algorithm=name, extra=name in beside) for name in (*names, *beside)
    )


def sweep(title: str, path: str, *values: Any, **fixed: Any) -> tuple[Part, ...]:
    """Return a part for each value of a setting.

    Args:
        title: Title with `{}` in place of the value.
        path: Dotted path of the setting.
        values: The values.
        fixed: Further arguments of every part.

    >>> parts = sweep("E = {}", "training.epochs", 1, 2)
    >>> [(part.name, part.title, part.settings) for part in parts]
    [('1', 'E = 1', {'training.epochs': 1}), ('2', 'E = 2', {'training.epochs': 2})]
    """
    return tuple(
        Part(str(value), title.format(value), settings={path: value}, **fixed) for value in values
    )
