"""The outcome of a run behind a table: finished, diverged, collapsed, or not done."""

from dataclasses import dataclass
from pathlib import Path

from fedmix.experiment.spec import Experiment
from fedmix.report.load import RunRecord, load
from fedmix.runs.failure import Failure, failure_of, read_failure
from fedmix.runs.run import folder_of
from fedmix.runs.store import Packed, packed_run
from fedmix.runs.summary import read_summary


@dataclass(frozen=True)
class Outcome:
    """The record of a finished run and whether its model only guesses, or how it failed.

    `packed` is whether it is in a store, where it cannot be continued.
    """

    record: RunRecord | None = None
    guesses: bool = False
    failure: Failure | None = None
    packed: bool = False

    @property
    def known(self) -> bool:
        """Whether the run finished or failed."""
        return self.record is not None or self.failure is not None

    @property
    def final(self) -> bool:
        """Whether there is nothing to run: it failed, or it is in a store."""
        return self.failure is not None or self.packed


def outcome(experiment: Experiment, out: Path) -> Outcome:
    """Return the outcome of an experiment from its folder under `out`, or from the store there.

    Raises:
        BadInput: The folder or the store is damaged.
    """
    folder = folder_of(experiment, out)
    if (summary := read_summary(folder)) is not None and summary.get("rounds") == experiment.rounds:
        return Outcome(load(folder), guesses="warning" in summary)
    if (failure := read_failure(folder)) is not None:
        return Outcome(failure=failure)
    if (run := packed_run(experiment, out)) is None:
        return Outcome()
    if "failure" in run.content:
        return Outcome(failure=failure_of(run.content["failure"], run.path))
    summary = run.content["summary"]
    if summary.get("rounds") != experiment.rounds:
        return Outcome()
    return Outcome(load(run), guesses="warning" in summary, packed=True)


def begun(experiment: Experiment, out: Path) -> Path | Packed | None:
    """Return the folder of an experiment, or its run in the store; None if it has not begun."""
    folder = folder_of(experiment, out)
    return folder if (folder / "metrics.jsonl").is_file() else packed_run(experiment, out)
