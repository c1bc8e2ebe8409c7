"""The outcome of a run behind a table: finished, diverged, collapsed, or not done."""

from dataclasses import dataclass
from pathlib import Path

from fedmix.experiment.spec import Experiment
from fedmix.report.load import RunRecord, load
from fedmix.runs.failure import Failure, read_failure
from fedmix.runs.run import folder_of
from fedmix.runs.summary import read_summary


@dataclass(frozen=True)
class Outcome:
    """The record of a finished run and whether its model only guesses, or how it failed."""

    record: RunRecord | None = None
    guesses: bool = False
    failure: Failure | None = None

    @property
    def known(self) -> bool:
        """Whether the run finished or failed."""
        return self.record is not None or self.failure is not None


def outcome(experiment: Experiment, out: Path) -> Outcome:
    """Return the outcome of an experiment from its folder under `out`.

    Raises:
        BadInput: The folder is damaged.
    """
    folder = folder_of(experiment, out)
    if (summary := read_summary(folder)) is not None and summary.get("rounds") == experiment.rounds:
        return Outcome(load(folder), guesses="warning" in summary)
    return Outcome(failure=read_failure(folder))
