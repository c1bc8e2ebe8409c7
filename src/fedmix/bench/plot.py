"""Plots as PNG or SVG: speed-ups over the plain loop, and the growth of a round's cost."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedmix.bench.results import Record
from fedmix.bench.scale import TITLES, Growth
from fedmix.core.errors import BadInput
from fedmix.core.files import check_picture, printable
from fedmix.report.files import write_figure
from fedmix.report.series import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GREY = "#9aa3ad"
LINE = 0.32  # inches for one bar


def draw_speedups(records: Sequence[Record], path: Path, caption: str = "") -> None:
    """Draw horizontal bars of the speed-up over the plain loop, one panel per workload.

    The picture is narrow enough for a phone. Raises BadInput if no record has a speed-up.

    Args:
        records: What was measured.
        path: The picture.
        caption: A line below that says how.
    """
    check_picture(path)
    shown = [r for r in records if r.speedup is not None]
    if not shown:
        raise BadInput(
            "there is nothing to draw: no record can be compared with a plain loop; measure "
            "variant plain as well"
        )
    from matplotlib.figure import Figure

    panels = list(dict.fromkeys((r.workload, r.device) for r in shown))
    rows = [_rows([r for r in shown if (r.workload, r.device) == panel]) for panel in panels]
    heights = [LINE * len(lines) + 0.5 for lines in rows]
    figure = Figure(figsize=(5.2, sum(heights) + 0.4), layout="constrained", facecolor="white")
    variants = list(dict.fromkeys(r.variant for r in shown))
    for axes, (workload, device), lines in zip(
        figure.subplots(len(panels), squeeze=False, height_ratios=heights)[:, 0],
        panels,
        rows,
        strict=True,
    ):
        _bars(axes, lines, variants)
        axes.set_title(
            f"{printable(workload)}, {printable(device)}",
            loc="left",
            fontsize=12,
            fontweight="bold",
            parse_math=False,
        )
    below = ["speed; the plain PyTorch loop is 1", *([printable(caption)] if caption else [])]
    figure.supxlabel("\n".join(below), fontsize=11, parse_math=False)
    write_figure(path, figure)


def _rows(records: Sequence[Record]) -> list[Record | str]:
    """A heading for each algorithm, followed by its records."""
    lines: list[Record | str] = []
    for algorithm in dict.fromkeys(r.algorithm for r in records):
        lines += [algorithm, *(r for r in records if r.algorithm == algorithm)]
    return lines


def _bars(axes: "Axes", lines: Sequence[Record | str], variants: Sequence[str]) -> None:
    colours = {
        v: GREY if v == "plain" else COLOURS[i % len(COLOURS)] for i, v in enumerate(variants)
    }
    longest = max(line.speedup or 0 for line in lines if isinstance(line, Record))
    names = []
    for y, line in enumerate(lines):
        if isinstance(line, str):
            names.append("")
            axes.text(
                0,
                y + 0.1,
                printable(line),
                fontsize=11,
                style="italic",
                va="center",
                parse_math=False,
            )
            continue
        speedup = line.speedup or 0
        names.append(printable(line.variant))
        axes.barh(y, speedup, height=0.78, color=colours[line.variant])
        label = f" {speedup:.2f}×" if speedup < 10 else f" {speedup:.1f}×"
        axes.text(speedup, y, label, va="center", fontsize=11)
    axes.axvline(1, color=GREY, linewidth=1, linestyle=":")
    axes.set_yticks(range(len(names)), names, fontsize=11, parse_math=False)
    axes.set(xlim=(0, 1.18 * max(longest, 1)), ylim=(len(lines) - 0.4, -0.6))
    axes.tick_params(length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


def draw_growth(grown: Sequence[Growth], path: Path) -> None:
    """Draw time above and memory below, one column per axis; the dotted line is linear growth.

    All axes are logarithmic.
    """
    check_picture(path)
    from matplotlib.figure import Figure

    axes_of = list(dict.fromkeys(g.axis for g in grown))
    algorithms = list(dict.fromkeys(g.algorithm for g in grown))
    figure = Figure(
        figsize=(3.1 * len(axes_of) + 0.6, 5.2), layout="constrained", facecolor="white"
    )
    panels = figure.subplots(2, len(axes_of), squeeze=False, sharex="col", sharey="row")
    for column, axis in enumerate(axes_of):
        for index, algorithm in enumerate(algorithms):
            mine = sorted(
                (g for g in grown if (g.axis, g.algorithm) == (axis, algorithm)),
                key=lambda g: g.value,
            )
            x, look = (
                [g.value for g in mine],
                {"color": COLOURS[index % len(COLOURS)], "marker": "o", "label": algorithm},
            )
            panels[0, column].plot(x, [g.seconds for g in mine], **look)
            panels[1, column].plot(x, [max(g.peak_mib, 1) for g in mine], **look)
            if index == 0 and len(mine) > 1:
                last = mine[-1]
                panels[0, column].plot(
                    x,
                    [last.seconds * g.value / last.value for g in mine],
                    ":",
                    color=GREY,
                    zorder=0,
                )
        panels[1, column].set_xlabel(TITLES[axis])
    for panel in panels.flat:
        panel.set(xscale="log", yscale="log")
    panels[0, 0].set_ylim(min(g.seconds for g in grown) / 2, max(g.seconds for g in grown) * 2)
    for panel in panels.flat:
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0, 0].set_ylabel("seconds of a round")
    panels[1, 0].set_ylabel("peak memory above start, MiB")
    panels[0, 0].legend(frameon=False)
    write_figure(path, figure)
