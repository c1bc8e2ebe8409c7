"""What became of a run behind a table: finished, diverged, or not done."""

import json
from dataclasses import dataclass
from pathlib import Path

from fedmix.errors import ClientFailure
from fedmix.experiment import Experiment
from fedmix.report.files import read_json, taken_from, write
from fedmix.report.load import RunRecord, load
from fedmix.runs import Run

FILE = "failure.json"


@dataclass(frozen=True)
class Outcome:
    """The record of a finished run, or the round in which a run diverged, or neither."""

    record: RunRecord | None = None
    diverged: int | None = None


def outcome(experiment: Experiment, out: Path) -> Outcome:
    """What a run's folder says. A run that diverged once would do so again, so that counts as its result."""
    run = Run(experiment, out / experiment.id)
    if (summary := run.summary) is not None and summary.get("rounds") == experiment.rounds:
        return Outcome(record=load(run.folder))
    failure = run.folder / FILE
    if failure.is_file():
        with taken_from(failure):
            return Outcome(diverged=int(read_json(failure)["round"]))
    return Outcome()


def is_divergence(error: Exception) -> bool:
    """Whether a run ended because its numbers did, and not for want of memory, data or a right setting."""
    return isinstance(error, ClientFailure) and "is NaN or infinite" in error.reason


def record_divergence(run: Run, error: ClientFailure) -> None:
    """Keep in the run's folder where it diverged; deleting the file has it run again."""
    said = {"round": error.round, "client": error.client, "step": error.step, "reason": error.reason}
    write(run.folder / FILE, (json.dumps(said, indent=1) + "\n").encode())
