"""Charts of our results beside the paper's: a PNG or SVG file, and a section of the HTML report.

Three or more columns with the same metric and data are a trend, drawn as lines in one chart; any
other column has a chart of its own, with a point for each row.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from fedmix.core.files import check_picture
from fedmix.paper.comparison import Compared, Comparison
from fedmix.paper.show import caption, statements, table
from fedmix.report import Lead
from fedmix.report.files import write_figure
from fedmix.report.series import COLOURS, style
from fedmix.report.svg import Chart, Series, dots, heights, linear, named, plot

OURS, THEIRS = COLOURS[0], COLOURS[1]
LETTERS = 13  # characters of a title per inch
NOTE = "Filled: ours, with the sample deviation over seeds. Open: the paper."

Cells = Sequence[Compared]  # of one column


def draw(comparison: Comparison, path: Path) -> None:
    """Write a picture with all charts side by side.

    Raises:
        BadInput: The path does not end in a picture's suffix, or cannot be written.
    """
    check_picture(path)
    from matplotlib.figure import Figure

    drawn, rows = _charts(comparison), len(comparison.cells)
    trends = any(len(columns) > 1 for columns in drawn)
    width, height = (
        (7.5 * len(drawn), 3.8 + 0.1 * rows)
        if trends
        else (2.5 + 2.2 * len(drawn), 2.3 + 0.35 * rows)
    )
    figure = Figure(figsize=(width, height), layout="constrained")
    for axes, columns in zip(
        figure.subplots(1, len(drawn), sharey=not trends, squeeze=False)[0], drawn, strict=True
    ):
        (_lines if len(columns) > 1 else _points)(axes, columns)
        axes.grid(alpha=0.25)
    if not trends:
        # all axes share it; the first row is at the top, and no row on the frame
        axes.set_ylim(rows - 0.5, -0.5)
        figure.legend(
            *axes.get_legend_handles_labels(),
            loc="outside lower right",
            ncols=2,
            frameon=False,
            fontsize=8,
        )
    said = [*comparison.study.warnings, comparison.study.table.title, caption(comparison)]
    figure.suptitle("\n".join(fill(line, int(LETTERS * width)) for line in said), fontsize=9)
    write_figure(path, figure)


def _charts(comparison: Comparison) -> list[list[Cells]]:
    """Return the columns of each chart."""
    columns: list[Cells] = list(zip(*comparison.cells, strict=True))
    alike = [
        list(some)
        for _, some in groupby(
            columns, lambda cells: (cells[0].column.preset, [c.metric for c in cells])
        )
    ]
    return [
        chart
        for some in alike
        for chart in ([some] if len(some) > 2 else [[cells] for cells in some])
    ]


def _points(axes: Any, columns: Sequence[Cells]) -> None:
    (cells,) = columns
    at = range(len(cells))
    axes.errorbar(
        _gaps(_ours(cells)),
        at,
        xerr=_deviations(cells),
        fmt="o",
        color=OURS,
        label="ours",
        capsize=3,
    )
    axes.plot(
        _gaps(_theirs(cells)),
        at,
        "o",
        color=THEIRS,
        markerfacecolor="none",
        markersize=9,
        label="the paper",
    )
    axes.set_title(cells[0].column.title, fontsize=9)
    axes.set_xlabel(cells[0].metric.title, fontsize=8)
    axes.set_yticks(at, [cell.row.title for cell in cells])


def _lines(axes: Any, columns: Sequence[Cells]) -> None:
    handles = []
    for i, cells in enumerate(zip(*columns, strict=True)):
        at, colour, row = range(len(cells)), style(i)[0], cells[0].row.title
        handles.append(
            axes.errorbar(
                at,
                _gaps(_ours(cells)),
                yerr=_deviations(cells),
                fmt="o-",
                color=colour,
                label=row,
                capsize=3,
            )
        )
        axes.plot(at, _gaps(_theirs(cells)), "o--", color=colour, markerfacecolor="none")
    axes.set_xticks(range(len(columns)), [cells[0].column.title for cells in columns])
    axes.set_ylabel(columns[0][0].metric.title, fontsize=8)
    handles += axes.plot([], [], "o--", color="grey", markerfacecolor="none", label="the paper")
    axes.legend(
        handles=handles, frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5)
    )


def lead(comparison: Comparison) -> Lead:
    """Return the comparison as the first section of a report."""
    study = comparison.study
    charts = [
        _trend(columns) if len(columns) > 1 else _chart(columns[0])
        for columns in _charts(comparison)
    ]
    notes = [*statements(comparison), *comparison.notes()]
    shown = replace(table(comparison), caption=caption(comparison))
    return Lead(study.table.title, study.warnings, shown, notes, charts)


def _trend(columns: Sequence[Cells]) -> Chart:
    series, metric = list[Series](), columns[0][0].metric.title
    for i, cells in enumerate(zip(*columns, strict=True)):
        series += _both(cells, i, cells[0].row.title, f"{cells[0].row.title}, the paper")
    across = named([cells[0].column.title for cells in columns])
    drawing = plot(across, linear(heights(series)), series)
    return Chart(f"Ours beside the paper's: {metric}", NOTE, drawing, series)


def _chart(cells: Cells) -> Chart:
    ours, theirs = _both(cells, 0, "ours", "the paper")
    rows = np.arange(len(cells), dtype=np.float64)
    series = [
        replace(one, x=one.y, y=rows, style=i, joined=False) for i, one in enumerate((ours, theirs))
    ]
    across = linear(heights([ours, theirs]), cells[0].metric.title)
    drawing = dots(across, [cell.row.title for cell in cells], series)
    return Chart(cells[0].column.title, NOTE, drawing, series)


def _both(cells: Cells, number: int, ours: str, theirs: str) -> tuple[Series, Series]:
    """Return our results and the paper's, in the order of the cells."""
    mean, paper = (np.array(_gaps(some)) for some in (_ours(cells), _theirs(cells)))
    off, x = np.array(_deviations(cells)), np.arange(len(cells), dtype=np.float64)
    where = [f"{cell.row.title}, {cell.column.title}" for cell in cells]
    said = [f"{w}: {cell.text()}" for w, cell in zip(where, cells, strict=True)]
    told = [f"{w}, the paper: {cell.paper_text()}" for w, cell in zip(where, cells, strict=True)]
    return (
        Series(ours, number, x, mean, mean - off, mean + off, dots=True, texts=said),
        Series(theirs, number, x, paper, dots=True, open=True, texts=told),
    )


def _ours(cells: Cells) -> list[float | None]:
    return [cell.spread.mean for cell in cells]


def _theirs(cells: Cells) -> list[float | None]:
    return [cell.paper for cell in cells]


def _deviations(cells: Cells) -> list[float]:
    return [cell.spread.deviation or 0.0 for cell in cells]


def _gaps(values: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]
