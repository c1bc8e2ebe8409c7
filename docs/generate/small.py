"""The paper's tables at small scale: runs of one seed, in a store of their own."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from textwrap import fill

from docs.generate.runs import STORE, machine_of
from fedmix.paper import TABLES, show
from fedmix.paper.comparison import compare
from fedmix.paper.study import Study
from fedmix.runs.store import packed_in

SMALL = STORE / "small"
SHOWN = ("mean-size", "dirichlet")  # of which there are runs


def table(name: str) -> str:
    """A table beside the paper's, as `fedmix reproduce NAME --scale small` shows it.

    It has the rows and columns of which something was run.
    """
    every = compare(Study(TABLES[name], (0,), "small"), SMALL, "late").cells
    ran = [cell for cells in every for cell in cells if cell.text() != "–"]
    rows, columns = (
        ",".join(dict.fromkeys(part.name for part in parts))
        for parts in ([cell.row for cell in ran], [cell.column for cell in ran])
    )
    some = Study(TABLES[name].select(rows, columns), (0,), "small")
    shown = show.markdown(compare(some, SMALL, "late")).strip()
    return "\n".join(line if line.startswith("|") else _folded(line) for line in shown.split("\n"))


def _folded(line: str) -> str:
    indent = "  " if line.startswith("- ") else ""
    return fill(line, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def made() -> str:
    """Where the runs were made, and how long each took."""
    by_place: dict[str, list[float]] = defaultdict(list)
    for run in packed_in(SMALL):
        said = run.content["environment"]
        where = f"{machine_of(said['device'])}, float32, torch {said['torch']}"
        place = f"{run.content['experiment']['data']['name']} | {said['commit'][:7]}, "
        place += f"{said['started'][:10]} | {where}"
        by_place[place].append(run.content["metrics"]["seconds"][-1] / 60)
    lines = [
        f"| {len(minutes)} | {place} | {min(minutes):.1f} to {max(minutes):.1f} |"
        for place, minutes in sorted(by_place.items())
    ]
    head = ["| runs | data | made at | on | minutes a run |", "|---|---|---|---|---|"]
    return "\n".join([*head, *lines])


PARTS: Mapping[str, Callable[[], str]] = {
    **{name: partial(table, name) for name in SHOWN},
    "made": made,
}
