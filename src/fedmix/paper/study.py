"""A table to be run: which experiments, for which seeds, at which scale, with which settings
changed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fedmix.core.errors import BadInput
from fedmix.experiment.spec import Experiment
from fedmix.paper.base import PaperTable
from fedmix.paper.scale import WARNING, small

Scale = Literal["paper", "small"]


@dataclass(frozen=True)
class Study:
    """`changes` are settings by dotted path, laid over every experiment that has them."""

    table: PaperTable
    seeds: tuple[int, ...] = (0,)
    scale: Scale = "paper"
    changes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        experiments = list(self.table.experiments())
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
                experiments[-1].with_settings({path: value})  # which says what is wrong with it
        _refuse_unsuitable(self.changes, experiments)

    def experiment(self, row: str, column: str, seed: int) -> Experiment:
        """The experiment of a cell."""
        base = self.table.experiment(row, column, seed)
        base = small(base) if self.scale == "small" else base
        return base.with_settings(_taken(self.changes, base))

    def experiments(self) -> list[Experiment]:
        """All of them, each once, a whole seed before the next."""
        cells = [
            (r.name, c.name, seed)
            for seed in self.seeds
            for r in self.table.rows
            for c in self.table.columns
        ]
        return list({e.id: e for e in (self.experiment(*cell) for cell in cells)}.values())

    @property
    def warnings(self) -> list[str]:
        """What sets these experiments apart from the paper's: to be said in every output."""
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
    """Refuse changes that some of the experiments cannot do with."""
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
