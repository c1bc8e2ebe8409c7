"""Ours beside the paper's as charts, one for each column: a PNG or SVG file, and the first section of the HTML report."""

import math
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from fedmix.files import check_picture
from fedmix.paper.comparison import Cell, Comparison
from fedmix.paper.show import both_texts, caption, order_texts, statements
from fedmix.report import Lead
from fedmix.report.figures import Chart
from fedmix.report.files import write_figure
from fedmix.report.series import COLOURS

OURS, THEIRS = COLOURS[0], COLOURS[1]
LETTERS = 13  # of a picture's title to the inch
NOTE = "Filled: ours, with the sample deviation over seeds. Open: the paper."


def draw(comparison: Comparison, path: Path) -> None:
    """Write a picture: a panel for each column, with a line for each row."""
    check_picture(path)
    from matplotlib.figure import Figure

    columns = list(zip(*comparison.cells, strict=True))
    width = 2.5 + 2.2 * len(columns)
    figure = Figure(figsize=(width, 2 + 0.35 * len(comparison.cells)), layout="constrained")
    for axes, cells in zip(figure.subplots(1, len(columns), sharey=True, squeeze=False)[0], columns, strict=True):
        at = range(len(cells))
        axes.errorbar(_gaps(_ours(cells)), at, xerr=_deviations(cells), fmt="o", color=OURS, label="ours", capsize=3)
        axes.plot(_gaps(_theirs(cells)), at, "o", color=THEIRS, markerfacecolor="none", markersize=9, label="the paper")
        axes.set_title(cells[0].column.title, fontsize=9)
        axes.set_xlabel(cells[0].metric.title, fontsize=8)
        axes.set_yticks(at, [cell.row.title for cell in cells])
        axes.grid(alpha=0.25)
    axes.invert_yaxis()  # they share it
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower right", ncols=2, frameon=False, fontsize=8)
    said = [*comparison.study.warnings, comparison.study.table.title]
    figure.suptitle("\n".join(fill(line, int(LETTERS * width)) for line in said), fontsize=9)
    write_figure(path, figure)


def lead(comparison: Comparison) -> Lead:
    """The comparison as the first section of a report."""
    table = comparison.study.table
    headers = ["ours (the paper's)", *(column.title for column in table.columns)]
    rows = [[row[0].row.title, *(both_texts(cell) for cell in row)] for row in comparison.cells]
    rows.append(["pairs in the paper's order", *order_texts(comparison)])
    charts = [_chart(cells) for cells in zip(*comparison.cells, strict=True)]
    notes = [*statements(comparison), *comparison.notes()]
    return Lead(table.title, comparison.study.warnings, headers, rows, caption(comparison), notes, charts)


def _chart(cells: Sequence[Cell]) -> Chart:
    both: dict[str, Any] = {"type": "scatter", "mode": "markers", "y": [cell.row.title for cell in cells]}
    whiskers = {"type": "data", "array": _deviations(cells), "color": OURS}
    ours = both | {"name": "ours", "x": _ours(cells), "error_x": whiskers, "marker": {"color": OURS, "size": 9}}
    open_ = {"color": THEIRS, "size": 12, "symbol": "circle-open", "line": {"width": 2}}
    theirs = both | {"name": "the paper", "x": _theirs(cells), "marker": open_}
    layout = {
        "xaxis": {"title": {"text": cells[0].metric.title, "standoff": 6}},
        "yaxis": {"type": "category", "autorange": "reversed", "automargin": True},
    }
    return Chart(cells[0].column.title, NOTE, [ours, theirs], layout, height=110 + 26 * len(cells))


def _ours(cells: Sequence[Cell]) -> list[float | None]:
    return [cell.spread.mean for cell in cells]


def _theirs(cells: Sequence[Cell]) -> list[float | None]:
    return [cell.paper for cell in cells]


def _deviations(cells: Sequence[Cell]) -> list[float]:
    return [cell.spread.deviation or 0.0 for cell in cells]


def _gaps(values: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]
