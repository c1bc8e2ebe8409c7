"""Ours beside the paper's as charts: a PNG or SVG file, and the first section of the HTML report."""

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmix.errors import BadInput
from fedmix.paper.comparison import Cell, Comparison
from fedmix.paper.show import caption, order_texts, statements
from fedmix.report import Lead
from fedmix.report.figures import Chart
from fedmix.report.files import write_whole
from fedmix.report.series import COLOURS

NOTE = "Filled, solid: ours, with the sample deviation over seeds. Open, dotted: the paper."


@dataclass(frozen=True)
class Panel:
    """Cells of one metric: lines of cells over common labels."""

    title: str
    labels: Sequence[str]
    lines: Sequence[tuple[str, Sequence[Cell]]]


def panels(comparison: Comparison) -> list[Panel]:
    """One for each metric: a line for each row over the columns, or over the rows where there is one column."""
    table, drawn = comparison.study.table, []
    metrics = {table.measured(table.rows[0], column): None for column in table.columns}
    for metric in metrics:
        across = [i for i, cell in enumerate(comparison.cells[0]) if cell.metric == metric]
        lines = [(row[0].row.title, [row[i] for i in across]) for row in comparison.cells]
        labels = [table.columns[i].title for i in across]
        if len(across) == 1:
            labels, lines = [name for name, _ in lines], [(labels[0], [cells[0] for _, cells in lines])]
        drawn.append(Panel(metric.title, labels, lines))
    return drawn


def draw(comparison: Comparison, path: Path) -> None:
    """Write the panels as a picture."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in ("png", "svg"):
        raise BadInput(f"{path}: a picture can be written as .png or .svg; choose one of these endings")
    import matplotlib as mpl
    from matplotlib.figure import Figure

    shown = panels(comparison)
    figure = Figure(figsize=(1 + 6 * len(shown), 5), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        for number, (name, cells) in enumerate(panel.lines):
            colour, at = COLOURS[number % len(COLOURS)], range(len(cells))
            ours, errors = _ours(cells)
            axes.errorbar(at, _gaps(ours), errors, fmt="o-", color=colour, label=name, capsize=3)
            axes.plot(at, _gaps(_theirs(cells)), "o:", color=colour, markerfacecolor="none")
        axes.set_xticks(range(len(panel.labels)), panel.labels, rotation=20, ha="right")
        axes.set(ylabel=panel.title)
        axes.legend(frameon=False, fontsize=8)
        axes.grid(alpha=0.25)
    figure.suptitle("\n".join([*comparison.study.warnings, comparison.study.table.title, NOTE]), fontsize=9)
    picture = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "fedmix"}):  # the same results give the same file
        figure.savefig(picture, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    write_whole(path, picture.getvalue())


def lead(comparison: Comparison) -> Lead:
    """The comparison as the first section of a report."""
    table = comparison.study.table
    headers = ["", *(text for column in table.columns for text in (column.title, "the paper"))]
    rows = [[row[0].row.title, *(t for cell in row for t in (cell.text(), cell.paper_text()))] for row in comparison.cells]
    rows.append(["pairs in the paper's order", *(t for text in order_texts(comparison) for t in (text, ""))])
    notes = [*statements(comparison), *comparison.notes()]
    drawn = [_chart(panel) for panel in panels(comparison)]
    return Lead(table.title, comparison.study.warnings, headers, rows, caption(comparison), notes, drawn)


def _chart(panel: Panel) -> Chart:
    data: list[dict[str, Any]] = []
    for number, (name, cells) in enumerate(panel.lines):
        both = {"type": "scatter", "x": list(panel.labels), "legendgroup": name, "name": name, "mode": "lines+markers"}
        colour = COLOURS[number % len(COLOURS)]
        ours, errors = _ours(cells)
        whiskers = {"type": "data", "array": errors, "color": colour}
        data.append(both | {"y": ours, "error_y": whiskers, "line": {"color": colour, "width": 2}})
        open_ = {"symbol": "circle-open", "size": 9}
        theirs = {"y": _theirs(cells), "line": {"color": colour, "dash": "dot"}, "marker": open_, "showlegend": False}
        data.append(both | theirs | {"hovertemplate": "the paper: %{y}<extra></extra>"})
    return Chart(f"Beside the paper: {panel.title}", NOTE, data, {"xaxis": {"type": "category"}, "yaxis": {}})


def _ours(cells: Sequence[Cell]) -> tuple[list[float | None], list[float]]:
    """Means, with gaps where there is none, and deviations."""
    return [cell.spread.mean for cell in cells], [cell.spread.deviation or 0.0 for cell in cells]


def _gaps(values: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]


def _theirs(cells: Sequence[Cell]) -> list[float | None]:
    return [cell.paper for cell in cells]
