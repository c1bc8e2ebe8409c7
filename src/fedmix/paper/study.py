"""A table to run: its experiments, seeds and scale, and the settings that are changed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fedmix.core.errors import BadInput
from fedmix.experiment.spec import Experiment
from fedmix.paper.base import PaperTable
from fedmix.paper.metrics import Protocol
from fedmix.paper.scale import SMALL, WARNING, small

Scale = Literal["paper", "small"]


@dataclass(frozen=True)
class Study:
    """The experiments of a table for some seeds, at a scale and with changed settings.

    Attributes:
        table: The table.
        seeds: The seeds.
        scale: The paper's size or a small one.
        changes: Settings by dotted path, for every experiment that has them.

    Raises:
        BadInput: A setting is unknown, fixed or varied by the table, or wrong for some experiments.
    """

    table: PaperTable
    seeds: tuple[int, ...] = (0,)
    scale: Scale = "paper"
    changes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.scale == "small" and not self.table.paper:
            raise BadInput(
                f"table {self.table.name} is of laptop size already; leave out --scale small"
            )
        experiments = [self._scaled(e) for e in self.table.experiments()]
        for path, value in self.changes.items():
            if path in ("seed", "objective.name", "data.name", "model.name"):
                raise BadInput(
                    f"{path} cannot be set for a table, which has its own; use --seed, --rows and "
                    "--columns"
                )
            if path in self.table.varied:
                raise BadInput(
                    f"{path} cannot be set for table {self.table.name}, which varies it; choose "
                    "its rows and columns"
                )
            if not any(e.takes(path) for e in experiments):
                experiments[-1].with_settings({path: value})  # raises and says what is wrong
        _refuse_unsuitable(self.changes, experiments)

    def experiment(self, row: str, column: str, seed: int) -> Experiment:
        """Return the experiment of a cell, with row and column given by name."""
        base = self._scaled(self.table.experiment(row, column, seed))
        return base.with_settings(_taken(self.changes, base))

    def _scaled(self, experiment: Experiment) -> Experiment:
        return small(experiment) if self.scale == "small" else experiment

    def experiments(self) -> list[Experiment]:
        """Return every experiment once, all of one seed before the next."""
        cells = [
            (r.name, c.name, seed)
            for seed in self.seeds
            for r in self.table.rows
            for c in self.table.columns
        ]
        return list({e.id: e for e in (self.experiment(*cell) for cell in cells)}.values())

    @property
    def score(self) -> Protocol:
        """Which score of a run counts, unless another is asked for.

        Accuracies of short runs jump from test to test, so at small scale it is a mean.
        """
        return "late" if self.scale == "small" else self.table.score

    @property
    def notes(self) -> list[str]:
        """What a reader has to know of the table, and of what is small."""
        if self.scale == "paper":
            return list(self.table.notes)
        used = dict.fromkeys(e.data.name for e in self.table.experiments())
        return [*self.table.notes, *(SMALL[name].said for name in used)]

    @property
    def warnings(self) -> list[str]:
        """How these experiments differ from the paper's; every output says so."""
        changed = ", ".join(
            f"{path}={value}" for path, value in self.changes.items() if _matters(path)
        )
        return [
            *([WARNING] if self.scale == "small" else []),
            *([f"CHANGED SETTINGS: {changed}"] if changed else []),
        ]


def _taken(changes: Mapping[str, Any], experiment: Experiment) -> dict[str, Any]:
    return {path: value for path, value in changes.items() if experiment.takes(path)}


def _refuse_unsuitable(changes: Mapping[str, Any], experiments: Sequence[Experiment]) -> None:
    """Raise BadInput if some of the experiments cannot take the changes."""
    refused: dict[str, BadInput] = {}
    for experiment in experiments:
        try:
            experiment.with_settings(_taken(changes, experiment))
        except BadInput as error:
            refused[experiment.algorithm] = error
    if not refused:
        return
    *_, why = refused.values()
    if len(refused) == len({e.algorithm for e in experiments if _taken(changes, e)}):
        raise why
    said = ", ".join(f"{path}={value}" for path, value in changes.items())
    raise BadInput(
        f"{said} cannot be set for {', '.join(refused)} ({why}); choose other rows with --rows"
    )


def _matters(path: str) -> bool:
    """Whether a setting changes what is computed, and not only where."""
    return path == "engine.precision" or not path.startswith("engine.")
