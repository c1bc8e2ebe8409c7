"""Progress of a run or of a count: a live bar on a terminal, an occasional line elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar

from fedmix.runs.run import Spec

LINE_SECONDS = 10.0
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


def bars(*, quiet: bool) -> Bar | None:
    """Return live progress bars; None if `quiet` or if standard error is not a terminal."""
    screen = console()
    if quiet or not screen.is_terminal:
        return None
    return Bar(
        TextColumn("{task.description}", markup=False), BarColumn(bar_width=24),
        MofNCompleteColumn(), TextColumn("{task.fields[now]}", markup=False), TimeRemainingColumn(),
        console=screen, speed_estimate_period=SLOWEST_SECONDS,
    )  # fmt: skip


class Progress:
    """Shows the round, score, loss, clients per second and time left of a run.

    Args:
        title: Name of the run.
        experiment: Its settings.
        number: Its number among all runs, such as 1/3.
        quiet: Show nothing.
        among: Bars of several runs to add a bar to; None makes a bar of its own.
    """

    def __init__(
        self, title: str, experiment: Spec, number: str, *, quiet: bool, among: Bar | None = None
    ) -> None:
        self.title, self.total = (
            title if number == "1/1" else f"[{number}] {title}",
            experiment.rounds,
        )
        self.clients: int = experiment.training.clients_per_round
        self.quiet, self.said, self.share = quiet, "", 0.0  # share of the rounds that are done
        self.shown: dict[str, float] = {}
        self.first: tuple[float, int] | None = None
        self.spoke = time.monotonic()
        self.own = bars(quiet=quiet) if among is None else None
        self.live = among or self.own
        if self.live:
            self.task = self.live.add_task(self.title, total=self.total, now="")

    def __enter__(self) -> "Progress":
        if self.own:
            self.own.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.own:
            self.own.stop()

    def update(self, line: dict[str, Any]) -> None:
        """Show the metrics of a round."""
        now = time.monotonic()
        self.first = self.first or (now, line["round"])
        rounds = line["round"] - self.first[1]
        pace = self.clients * rounds / (now - self.first[0]) if rounds else 0.0
        self.shown |= {k: line[k] for k in ("accuracy", "mse", "loss") if line.get(k) is not None}
        text = self._text(pace)
        self.share = line["round"] / self.total
        self.said = f"round {line['round']}/{self.total}  {text}"
        if self.live:
            self.live.update(self.task, completed=line["round"], now=text)
        elif not self.quiet and (line["round"] == self.total or now - self.spoke >= LINE_SECONDS):
            self.spoke = now
            print(f"{self.title}  {self.said}", file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """Show a text beside a live bar until the next round is done."""
        if self.live:
            self.live.update(self.task, now=text)

    def note(self, text: str) -> None:
        """Print a line about one of several runs."""
        if not self.quiet:
            screen = self.live.console if self.live else console()
            screen.print(f"{self.title}  {text}", soft_wrap=True)

    def leave(self, problem: str = "") -> None:
        """Remove the bar, and print a line that says how the run ended."""
        if self.live:
            self.live.remove_task(self.task)
        if problem or self.live:
            self.note(problem or self.said)

    def _text(self, pace: float) -> str:
        parts = []
        if "accuracy" in self.shown:
            parts.append(f"accuracy {100 * self.shown['accuracy']:5.1f} %")
        if "mse" in self.shown:
            parts.append(f"mse {self.shown['mse']:.4f}")
        if "loss" in self.shown:
            parts.append(f"loss {self.shown['loss']:.3f}")
        if pace:
            parts.append(f"{pace:.1f} clients/s")
        return "  ".join(parts)


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
