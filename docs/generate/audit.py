"""The tables of docs/audit.md, from what `fedmix audit --json` wrote."""

import json
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from docs.generate.tables import markdown

FOLDER = Path(__file__).parents[2] / "benchmarks" / "results" / "2026-11-15-audit"
Cell = Mapping[str, Any]  # what was found with one M and one noise
Columns = Mapping[str, Callable[[Cell], str]]
Chosen = Callable[[Cell], bool]

# By who sees what: each client's means, the pool, the pool of averages of four clients.
SEES = {"server": "member: server", "client": "client", "together": "averaged by 4"}


def _percent(share: float) -> str:
    value = 100 * share
    return f"{value:.1f}" if 0.05 < value < 9.95 else f"{value:.0f}"


def _member(who: str, cell: Cell) -> str:
    found = cell["membership"][who]
    return f"{found['auc']:.3f} ({_percent(found['tpr'])} %)"


def _named(cell: Cell) -> str:
    found = cell["reconstruction"]
    return f"{100 * found['identified']:.0f} % ({_percent(found['chance'])} %)"


def _blind(cell: Cell) -> str:
    found = cell["reconstruction"]
    return f"{found['blind']['psnr']:.1f} ({found['unseen']['psnr']:.1f})"


def _owner(pool: str, cell: Cell) -> str:
    found = cell["linking"][pool]
    both = f"{100 * found['labels']:.0f} / {100 * found['samples']:.0f} %"
    return f"{both} ({100 * found['chance']:.0f} %)"


def _changed(who: str, average: int, waits: bool, cell: Cell) -> str:
    [found] = [
        one
        for one in cell["differencing"]
        if (one["average"], bool(one["wait"])) == (average, waits)
    ]
    return f"{round(found[who])}".replace("-", "−")


MEMBER: Columns = {title: partial(_member, who) for who, title in SEES.items()}
OWNER: Columns = {
    "owner by labels / and samples (chance)": partial(_owner, "alone"),
    "averaged by 4": partial(_owner, "together"),
}
CHANGE: Columns = {
    "change: server": partial(_changed, "server", 1, False),
    "client": partial(_changed, "client", 1, False),
    "averaged by 4": partial(_changed, "client", 4, False),
    "waiting for a quarter": partial(_changed, "client", 1, True),
    "both": partial(_changed, "client", 4, True),
}
NAMED: Columns = {"named (chance)": _named}
BLIND: Columns = {"blind, dB (class's mean)": _blind}
EPSILON: Columns = {
    "ε proven": lambda cell: f"{cell['epsilon']:.0f}",
    "σ": lambda cell: f"{cell['exchange']['noise']:.3g}",
    "ε shown": lambda cell: f"{cell['neighbours']['epsilon']:.2f}",
}
LABELS: Columns = {"labels read": lambda cell: f"{100 * cell['labels']['known']:.0f} %"}
NOISE: Columns = {"σ": lambda cell: f"{cell['exchange']['noise']:g}"}


def _table(name: str, groups: Sequence[Columns], chosen: Chosen) -> str:
    """Return a table of a file's cells; groups may name columns alike."""
    columns = [(title, of) for group in groups for title, of in group.items()]
    cells = [cell for cell in _file(name)["cells"] if chosen(cell)]
    lines = [[f"{cell['m']}", *(of(cell) for _, of in columns)] for cell in cells]
    return markdown(["M", *(title for title, _ in columns)], lines)


def _file(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return found


def _sure(name: str) -> str:
    """Say how sure a file's figures are, and how it was made."""
    of = _file(name)
    cells = of["cells"]
    wide = max(
        max(found["auc_high"] - found["auc"], found["auc"] - found["auc_low"])
        for cell in cells
        for found in cell["membership"].values()
    )
    shown = [cell["neighbours"]["epsilon"] for cell in cells]
    read = [cell["labels"]["known"] for cell in cells]
    always = (
        f" Label counts were read in all means. Who knows the rest was right every time (ε ≥ "
        f"{min(shown):.2f}, the most that so many trials can show)."
        if min(read) == 1 and min(shown) == max(shown)
        else ""
    )
    said = (
        f"An AUC is known to ± {wide:.3f} or better, at all {len(cells)} settings at once.{always} "
        f"Made by `{of['command']}` at commit {of['commit'][:7]} on {of['started'][:10]}."
    )
    return textwrap.fill(said, 100, break_long_words=False, break_on_hyphens=False)


def _with(name: str, groups: Sequence[Columns], chosen: Chosen) -> str:
    return f"{_table(name, groups, chosen)}\n\n{_sure(name)}"


def _of(sizes: Iterable[object] | None = None, noises: Iterable[float] | None = None) -> Chosen:
    return lambda cell: (
        (sizes is None or cell["m"] in sizes)
        and (noises is None or cell["exchange"]["noise"] in noises)
    )


FEW = (1, 2, 5, 10, "all")  # on digits, M = 50 is all
PARTS: Mapping[str, Callable[[], str]] = {
    "digits": partial(
        _with, "digits", (NOISE, MEMBER, NAMED, BLIND, OWNER), _of(FEW, (0.0, 0.3))
    ),
    "digits-change": partial(_table, "digits", (NOISE, CHANGE), _of(FEW, (0.0, 0.05))),
    "digits-private": partial(
        _with,
        "digits-private",
        (EPSILON, {"member: server": MEMBER["member: server"]}, NAMED, LABELS, OWNER),
        _of((1, 10, "all")),
    ),
    "cifar10": partial(_with, "cifar10", (NOISE, MEMBER, NAMED, BLIND, OWNER), _of()),
    "cifar10-change": partial(_table, "cifar10", (NOISE, CHANGE), _of()),
    "femnist": partial(_with, "femnist", (NOISE, MEMBER, NAMED, BLIND, OWNER), _of()),
}  # fmt: skip
