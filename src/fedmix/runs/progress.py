"""Progress of runs or of a count: live lines on a terminal, an occasional line elsewhere."""

import logging
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Task, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from fedmix.core.errors import BadInput, Interrupted
from fedmix.runs.lines import Lines, fitting
from fedmix.runs.run import Spec

DOING = logging.getLogger("fedmix.training")
LINE_SECONDS = 30.0
SLOWEST_SECONDS = 600.0  # the time left is estimated if two rounds take no longer than this


def console(stream: TextIO | None = None) -> Console:
    """Return a console for messages on standard error, or on `stream`, that prints text as it is.

    Results go to standard output. rich respects NO_COLOR.
    """
    return Console(file=stream or sys.stderr, highlight=False, markup=False, emoji=False)


def stdout_console() -> Console:
    """Return a console on standard output for tables, at least 80 columns wide.

    On a narrower terminal lines wrap, and no number loses digits.
    """
    out = console(sys.stdout)
    out.width = max(out.width, 80)
    return out


def tell_written(*paths: Path | None) -> None:
    """Print the paths of files that were written."""
    for path in filter(None, paths):
        console().print(f"wrote {path}", soft_wrap=True)


def work(experiment: Spec) -> int:
    """Return a number that grows with the work of a round, without the data."""
    return int(experiment.per_round * experiment.training.epochs)


class Board:
    """What is shown of a command: a line for each run that trains, and one for all of several.

    On a terminal these lines move. Elsewhere a line is printed when a run begins, when it ends, and
    in between every `LINE_SECONDS` seconds at most.

    Args:
        runs: The settings of the runs to come, and how many rounds of each are done.
        ended: How many other runs of this command were done before.
        quiet: Show nothing.
    """

    def __init__(
        self, runs: Sequence[tuple[Spec, int]], *, ended: int = 0, quiet: bool = False
    ) -> None:
        screen = console()
        self.quiet, self.live = quiet, not quiet and screen.is_terminal
        self.lines = Lines(
            console=screen, disable=not self.live, speed_estimate_period=SLOWEST_SECONDS
        )
        self.ended, self.runs = ended, ended + len(runs)
        self.spoke = time.monotonic()
        self.all: TaskID | None = None
        if runs and self.runs > 1:
            left = sum((spec.rounds - begun) * work(spec) for spec, begun in runs)
            self.all = self.lines.add_task("all runs", total=left, now=(), count=self._count())

    def __enter__(self) -> "Board":
        self.lines.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.lines.stop()

    def note(self, text: str) -> None:
        """Print a line, above those that move."""
        if not self.quiet:
            self.lines.console.print(text, soft_wrap=True)

    def did(self, amount: int) -> None:
        """Note that so much of the work of all runs is done, see `work`."""
        if self.all is not None:
            self.lines.advance(self.all, amount)

    def end(self, undone: int) -> None:
        """Note that a run ended, with so much of its work undone."""
        self.ended += 1
        if self.all is not None:
            total = (self.task(self.all).total or 0) - undone
            self.lines.update(self.all, total=total, count=self._count())

    def is_time(self) -> bool:
        """Whether to print a line again, where none moves."""
        if self.live or time.monotonic() - self.spoke < LINE_SECONDS:
            return False
        self.spoke = time.monotonic()
        return True

    def of_all(self) -> str:
        """Say how many of several runs are done, and the time that the others need."""
        if self.all is None:
            return ""
        return "; ".join(["", *filter(None, [f"{self._count()} runs", self.time_left(self.all)])])

    def task(self, number: TaskID) -> Task:
        """Return what a line shows."""
        return next(task for task in self.lines.tasks if task.id == number)

    def time_left(self, number: TaskID) -> str:
        """Say how much time a line has left; empty if that is not known, or if it is done."""
        left = self.task(number).time_remaining
        return f"{timedelta(seconds=left)} left" if left else ""

    def _count(self) -> str:
        return f"{self.ended}/{self.runs}"


class Progress:
    """Shows the round, time left, score, loss and clients per second of a run.

    Args:
        title: Name of the run.
        experiment: Its settings.
        begun: How many rounds were done before.
        quiet: Show nothing.
        board: What else is shown; None shows this run alone.
    """

    def __init__(
        self,
        title: str,
        experiment: Spec,
        begun: int = 0,
        *,
        quiet: bool = False,
        board: Board | None = None,
    ) -> None:
        self.title, self.total, self.done = title, experiment.rounds, begun
        self.clients, self.work = experiment.per_round, work(experiment)
        self.own = board is None
        self.board = board or Board([(experiment, begun)], quiet=quiet)
        self.shown: dict[str, float] = {}
        self.said: list[str] = []
        self.heard = _Heard(self)
        self.task = self.board.lines.add_task(
            title, total=self.total, completed=begun, now=(), count=""
        )

    @property
    def live(self) -> bool:
        """Whether a line moves."""
        return self.board.live

    def __enter__(self) -> "Progress":
        if self.own:
            self.board.lines.start()
        DOING.addHandler(self.heard)
        DOING.setLevel(logging.INFO)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        DOING.removeHandler(self.heard)
        if error is None or isinstance(error, Exception):
            self.leave(None if isinstance(error, BadInput) else error)  # told once, at the end
        if self.own:
            self.board.lines.stop()

    def begin(self) -> None:
        """Say that the run begins, or goes on, where no line moves."""
        if self.done == self.total:
            self.note("done before")
        elif not self.live:
            self.note(f"goes on after round {self.done}/{self.total}" if self.done else "started")

    def update(self, line: dict[str, Any]) -> None:
        """Show the metrics of a round."""
        self.shown |= {k: line[k] for k in ("accuracy", "mse", "loss") if line.get(k) is not None}
        before, self.done = self.done, line["round"]
        self.board.did((self.done - before) * self.work)
        self.board.lines.update(self.task, completed=self.done)
        now = self._now()
        self.board.lines.update(self.task, now=now)
        self.said = [f"round {self.done}/{self.total}", *now]
        if self.done < self.total and self.board.is_time():  # the last round is told by `leave`
            left = self.board.time_left(self.task)
            self.note("  ".join(filter(None, [*self.said, left])) + self.board.of_all())

    def say(self, text: str) -> None:
        """Show a text beside a live bar until the next round is done."""
        self.board.lines.update(self.task, now=(text,))

    def note(self, text: str) -> None:
        """Print a line about this run."""
        self.board.note(f"{self.title}  {text}")

    def leave(self, error: Exception | None = None) -> None:
        """Print a line that says how the run ended, and remove its bar if it is one of several.

        Whoever runs one alone tells its error, and whoever was interrupted says so once.
        """
        among = self.board.all is not None
        if not isinstance(error, Interrupted):
            self.board.end((self.total - self.done) * self.work)
            if error is not None and among:
                self.note(str(error) or type(error).__name__)
            elif error is None and self.said and (among or not self.live):
                width = self.board.lines.console.width if self.live else math.inf
                self.note(*fitting([self.said], width - cell_len(self.title) - 2))
        if among:
            self.board.lines.remove_task(self.task)

    def _now(self) -> list[str]:
        """What the last rounds gave: what matters most comes first."""
        shown, speed = self.shown, self.board.task(self.task).speed
        return [
            *([f"accuracy {100 * shown['accuracy']:5.1f} %"] if "accuracy" in shown else []),
            *([f"mse {shown['mse']:.4f}"] if "mse" in shown else []),
            *([f"loss {shown['loss']:.3f}"] if "loss" in shown else []),
            *([f"{self.clients * speed:.1f} clients/s"] if speed else []),
        ]


class _Heard(logging.Handler):
    """Shows what training says that it is doing."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(logging.INFO)
        self.progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        if self.progress.live:
            self.progress.say(record.getMessage())
        else:
            self.progress.note(record.getMessage())


@contextmanager
def counting(total: int, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Yield a function to call with the name of each of `total` things when it begins.

    It moves a bar on a terminal, and prints a plain line from time to time elsewhere.
    """
    screen, count, spoke = console(), 0, -LINE_SECONDS
    if quiet:
        yield lambda _: None
        return
    if not screen.is_terminal:

        def say(what: str) -> None:
            nonlocal count, spoke
            count += 1
            if time.monotonic() - spoke >= LINE_SECONDS:
                spoke = time.monotonic()
                print(f"{count}/{total}  {what}", file=sys.stderr, flush=True)

        yield say
        return
    columns = (
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Bar(*columns, console=screen, transient=True) as bar:
        task = bar.add_task("", total=total)

        def move(what: str) -> None:
            nonlocal count
            bar.update(task, completed=count, description=what)
            count += 1

        yield move
