"""The page's charts as plotly's JSON: plain dicts, so that plotly is needed for its script only."""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedmix.report.groups import Group
from fedmix.report.load import RunRecord
from fedmix.report.metrics import Array
from fedmix.report.results import Results
from fedmix.report.series import Band, band, style

LONGEST = 48  # characters of a label in a chart
CLIENTS = 100  # rows of a heat map
HEAT = [  # viridis without the colours that are invisible on black
    [0, "#fde725"],
    [0.35, "#5ec962"],
    [0.7, "#21918c"],
    [1, "#31688e"],
]
GREY = "rgba(128,128,128,0.9)"


@dataclass(frozen=True)
class Chart:
    """A figure, with a note that says how to read it."""

    title: str
    note: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    height: int = 300  # without the legend
    wide: bool = False


def charts(groups: Sequence[Group], results: Results) -> list[Chart]:
    """Return all curves, and the rounds to the target if a run reached it."""
    drawn = []
    name, unit = ("Accuracy", " %") if results.score == "accuracy" else ("Mean squared error", "")
    for title, y, x in (
        (f"{name} by round", results.score, "round"),
        ("Test loss by round", "loss", "round"),
        (f"{name} against megabytes sent", results.score, "megabytes"),
        (f"{name} against seconds", results.score, "seconds"),
        ("Training loss by round", "local_loss", "round"),
    ):
        if y is not None and any(_has(run, y) for group in groups for run in group.runs):
            drawn.append(_curves(groups, title, y, x, unit if y == results.score else ""))
            if y == results.score:
                _mark_target(drawn[-1], results)
    by_size = _by_size(groups, f"{name} by clients' samples", 100.0 if unit else 1.0, unit)
    if by_size.data:
        drawn.append(by_size)
    if any(row.reached for row in results.rows):
        drawn.append(_rounds(results))
    return drawn


def heat_map(run: RunRecord, title: str, note: str) -> Chart | None:
    """Return a heat map of clients by classes; None if the data has no classes."""
    if run.clients is None or run.clients.counts is None:
        return None
    counts = run.clients.counts[:CLIENTS]
    if len(counts) < len(run.clients.counts):
        note = f"{note} The first {CLIENTS} of {len(run.clients.counts)} clients are shown."
    trace = {
        "type": "heatmap",
        "z": [[n or None for n in _plain(row)] for row in counts],  # an empty cell stays blank
        "colorscale": HEAT,
        "zmin": 0,
        "zmax": float(counts.max()),
        "xgap": 1,
        "ygap": 1,
        "hovertemplate": "client %{y}, class %{x}: %{z} samples<extra></extra>",
        "hoverongaps": False,
        "colorbar": {
            "thickness": 12,
            "outlinewidth": 0,
            "title": {"text": "samples", "side": "right"},
        },
    }
    axes = {"showgrid": False, "zeroline": False}
    layout = {
        "xaxis": axes
        | {"title": {"text": "class", "standoff": 6}, "dtick": _step(counts.shape[1], 20)},
        "yaxis": axes
        | {"title": {"text": "client"}, "autorange": "reversed", "dtick": _step(len(counts), 20)},
        "margin": {"l": 48, "r": 8, "t": 8, "b": 44},
    }
    note = f"{note} A blank cell has no samples."
    return Chart(title, note, [trace], layout, height=min(640, 110 + 14 * len(counts)), wide=True)


def _curves(groups: Sequence[Group], title: str, y: str, x: str, unit: str) -> Chart:
    scale = 100.0 if y == "accuracy" else 1.0
    data = []
    for index, group in enumerate(groups):
        runs = [run for run in group.runs if _has(run, y)]
        if runs:
            data += _traces(group.label, index, band(runs, y, x), scale, unit)
    axis = {"round": "round", "megabytes": "MB, up and down, all clients", "seconds": "seconds"}[x]
    layout = {
        "xaxis": {"title": {"text": axis, "standoff": 6}, "rangemode": "tozero"},
        "yaxis": {"ticksuffix": unit},
        "hovermode": "x unified" if x == "round" else "closest",
    }
    several = any(len(group.runs) > 1 for group in groups)
    return Chart(
        title, "Line: mean over seeds; band: lowest to highest." if several else "", data, layout
    )


def _by_size(groups: Sequence[Group], title: str, scale: float, unit: str) -> Chart:
    """Return the score on clients' own test samples by their size, over tenths of the clients."""
    data = []
    for index, group in enumerate(groups):
        scored = [
            run.clients
            for run in group.runs
            if run.finished and run.clients and run.clients.scores is not None
        ]
        if not scored:
            continue
        sizes, scores = (
            np.concatenate([c.sizes for c in scored]),
            np.concatenate([c.scores for c in scored]),
        )
        tenths = [
            part for part in np.array_split(np.argsort(sizes, kind="stable"), 10) if len(part)
        ]
        colour, dash = style(index)
        trace = {
            "type": "scatter",
            "name": _text(group.label),
            "x": _plain(np.array([sizes[part].mean() for part in tenths])),
            "y": _plain(scale * np.array([scores[part].mean() for part in tenths])),
            "mode": "lines+markers",
            "line": {"color": colour, "dash": dash, "width": 2.5},
            "hovertemplate": f"%{{y:.4g}}{unit}",
        }
        data.append(trace)
    layout = {
        "xaxis": {"title": {"text": "training samples of a client", "standoff": 6}},
        "yaxis": {"ticksuffix": unit},
        "hovermode": "closest",
    }
    note = (
        "On each client's own test samples, by the last model. A point: mean over a tenth of "
        "the clients of all seeds."
    )
    return Chart(title, note, data, layout)


def _traces(label: str, index: int, values: Band, scale: float, unit: str) -> list[dict[str, Any]]:
    """Return the band as a closed outline, then the mean; a click on the legend hides both."""
    colour, dash = style(index)
    both = {"type": "scatter", "legendgroup": str(index), "name": _text(label)}
    line = both | {
        "x": _plain(values.x),
        "y": _plain(scale * values.mean),
        "customdata": _plain(values.runs),
        "mode": "lines+markers" if len(values.x) <= 10 else "lines",
        "line": {"color": colour, "dash": dash, "width": 2.5},
        "hovertemplate": f"%{{y:.4g}}{unit}, runs: %{{customdata}}",
    }
    if values.runs.max() < 2:
        return [line]
    finite = np.isfinite(values.low) & np.isfinite(values.high)
    x, low, high = values.x[finite], scale * values.low[finite], scale * values.high[finite]
    outline = both | {
        "x": _plain(np.concatenate([x, x[::-1]])),
        "y": _plain(np.concatenate([high, low[::-1]])),
        "mode": "lines",
        "line": {"width": 0},
        "fill": "toself",
        "fillcolor": _faint(colour),
        "hoverinfo": "skip",
        "showlegend": False,
    }
    return [outline, line]


def _mark_target(chart: Chart, results: Results) -> None:
    """Draw a line at the target, if it is the same for all groups."""
    targets = {row.target for row in results.rows}
    [target] = targets if len(targets) == 1 else [None]
    if target is not None and math.isfinite(target):
        at = 100 * target if results.score == "accuracy" else target
        line = {"color": GREY, "width": 1, "dash": "dot"}
        chart.layout["shapes"] = [
            {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": at, "y1": at, "line": line}
        ]


def _rounds(results: Results) -> Chart:
    """Return bars with the deviation as whiskers; a group that never reached the target says so."""
    rows, table = results.rows, results.table()
    column = next(i for i, title in enumerate(table.titles) if title.startswith("rounds to"))
    numbers = [row.to_target.mean or 0.0 for row in rows]
    whiskers = {
        "type": "data",
        "array": [row.to_target.deviation for row in rows],
        "color": GREY,
        "thickness": 2,
        "width": 0,
    }
    trace = {
        "type": "bar",
        "orientation": "h",
        "y": list(range(len(rows))),
        "x": numbers,
        "error_x": whiskers,
        "marker": {"color": [style(i)[0] for i in range(len(rows))]},
        "width": 0.4,
        "hoverinfo": "skip",
    }
    names = [
        {
            "text": f"<b>{_text(row.label)}</b>: {_text(str(table.rows[i][column]))}",
            "x": 0,
            "y": i - 0.4,
            "xanchor": "left",
            "yanchor": "middle",
            "showarrow": False,
        }
        for i, row in enumerate(rows)
    ]
    layout = {
        "xaxis": {
            "title": {"text": "round", "standoff": 6},
            "rangemode": "tozero",
            "range": [0, 1.1 * max(*numbers, 1.0)],
        },
        "yaxis": {"visible": False, "range": [len(rows) - 0.5, -0.75], "fixedrange": True},
        "annotations": names,
        "showlegend": False,
        "margin": {"l": 8, "r": 8, "t": 8, "b": 44},
    }
    note = "Mean over the seeds that got there; whisker: sample deviation."
    return Chart(
        table.titles[column].capitalize(),
        note,
        [trace],
        layout,
        height=max(300, 70 + 48 * len(rows)),
    )


def _has(run: RunRecord, name: str) -> bool:
    return not bool(np.isnan(run.metrics[name]).all())


def _plain(values: Array) -> list[float | int | None]:
    """Return numbers for JSON, rounded to six digits; None for a gap."""
    rounded = (float(f"{value:.6g}") if math.isfinite(value) else None for value in values.tolist())
    return [int(n) if n is not None and n.is_integer() and abs(n) < 1e15 else n for n in rounded]


def _text(label: str) -> str:
    """Escape and shorten a label for plotly, which reads some markup in text."""
    return html.escape(label if len(label) <= LONGEST else f"{label[: LONGEST - 1]}…")


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.18)"


def _step(count: int, most: int) -> int:
    """Return a round distance between ticks, so that there are at most `most` of them."""
    return next(
        step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, count) if count / step <= most
    )
