"""What became of a run behind a table: finished, diverged, collapsed, or not done."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from fedmix.core.errors import Collapsed, Diverged
from fedmix.core.files import printable
from fedmix.experiment.spec import Experiment
from fedmix.report.files import read_json, taken_from, write
from fedmix.report.load import RunRecord, load
from fedmix.runs.run import Run

FILE = "failure.json"


class Fate(NamedTuple):
    """How a run that gives no number ended, in which round, and what was said of it."""

    word: Literal["diverged", "collapsed"]
    round: int
    reason: str


@dataclass(frozen=True)
class Outcome:
    """The record of a finished run, and whether its model only guesses; or how a run was lost; or
    neither.
    """

    record: RunRecord | None = None
    guesses: bool = False
    fate: Fate | None = None

    @property
    def known(self) -> bool:
        """Whether it is a result, of either kind."""
        return self.record is not None or self.fate is not None


def outcome(experiment: Experiment, out: Path) -> Outcome:
    """What a run's folder says.

    A run that was lost once would be so again, so that counts as its result.
    """
    run = Run(experiment, out / experiment.id)
    if (summary := run.summary) is not None and summary.get("rounds") == experiment.rounds:
        return Outcome(load(run.folder), guesses="warning" in summary)
    failure = run.folder / FILE
    if failure.is_file():
        with taken_from(failure):
            said = read_json(failure)
            word: Literal["diverged", "collapsed"] = (
                "collapsed" if said.get("kind") == "collapsed" else "diverged"
            )
            return Outcome(fate=Fate(word, int(said["round"]), printable(said["reason"])))
    return Outcome()


def record_failure(run: Run, error: Diverged | Collapsed) -> None:
    """Keep in the run's folder how it was lost; deleting the file has it run again."""
    said = {"kind": type(error).__name__.lower(), **vars(error)}
    write(run.folder / FILE, (json.dumps(said, indent=1) + "\n").encode())
