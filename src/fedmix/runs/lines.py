"""Live lines of progress that fit their terminal: what matters least goes first."""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.progress import BarColumn, Progress, TimeRemainingColumn
from rich.table import Table

NARROW, WIDE = 6, 24  # columns of a bar, at least and at most
PRESSED = 2  # columns of ^C, which a terminal writes behind the last line


class Lines(Progress):
    """Bars in lines of one width; titles, steps and the time left are kept longest.

    A task's fields are `now`, texts of which the last go first, and `count`, which is shown in
    place of its number of steps if it is not empty.
    """

    left = TimeRemainingColumn(elapsed_when_finished=True)

    def get_renderables(self) -> Iterator[Table]:
        """Yield the lines as one table, for the width that the terminal has now."""
        tasks = [task for task in self.tasks if task.visible]
        if not tasks:
            return
        titles = [task.description for task in tasks]
        counts = [t.fields["count"] or f"{t.completed:.0f}/{t.total:.0f}" for t in tasks]
        times = [self.left.render(task) for task in tasks]
        room = self.console.width - PRESSED - 2
        room -= max(map(cell_len, counts)) + max(map(len, times))
        widest = min(max(map(cell_len, titles)), max(room, 1))
        room -= widest + 1  # for the bar and what is said beside it
        said = fitting([task.fields["now"] for task in tasks], room - NARROW - 1)
        bar = BarColumn(bar_width=min(room - max(map(cell_len, said)) - 1, WIDE))
        drawn = [[bar.render(task)] if room >= NARROW else [] for task in tasks]
        table = Table.grid(padding=(0, 1, 0, 0))
        table.add_column(no_wrap=True, overflow="ellipsis", max_width=widest)
        for _ in range(len(drawn[0]) + 3):
            table.add_column(no_wrap=True)
        for title, bars, *rest in zip(titles, drawn, counts, times, said, strict=True):
            table.add_row(title, *bars, *rest)
        yield table


def fitting(said: Sequence[Sequence[str]], room: float) -> list[str]:
    """Return as many of the first texts of each line as fit into `room`, the same for all lines.

    A first text that does not fit is cut.

    >>> fitting([["accuracy 81.2 %", "loss 0.5"], ["accuracy 7.0 %"]], 20)
    ['accuracy 81.2 %', 'accuracy 7.0 %']
    >>> fitting([["compiling the step"]], 10)
    ['compiling…']
    """
    for count in range(max(map(len, said)), 0, -1):
        lines = ["  ".join(parts[:count]) for parts in said]
        if max(map(cell_len, lines)) <= room:
            return lines
    room = max(int(room), 0)
    firsts = ["".join(parts[:1]) for parts in said]
    return [one if cell_len(one) <= room else f"{one[: room - 1]}…"[:room] for one in firsts]
