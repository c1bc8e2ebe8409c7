"""The page's charts: curves by round, scores by the size of clients, and who has which classes."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedmix.report.gallery import png
from fedmix.report.groups import Group
from fedmix.report.load import RunRecord
from fedmix.report.metrics import Array
from fedmix.report.results import Results
from fedmix.report.series import band
from fedmix.report.svg import (
    HUGE,
    LINE,
    Chart,
    Scale,
    Series,
    dots,
    grid,
    heights,
    linear,
    logarithmic,
    named,
    plot,
    skewed,
)

CLIENTS = 100  # rows of a heat map
FEW = 12  # rows of a chart of dots
CUT = 0.98  # share of the values that an axis with outliers shows
HEAT = ((253, 231, 37), (94, 201, 98), (33, 145, 140), (49, 104, 142))  # legible on black and white
AXES = {"round": "round", "megabytes": "MB, up and down, all clients", "seconds": "seconds"}


def charts(groups: Sequence[Group], results: Results) -> list[Chart]:
    """Return the curves of the groups of a data set, scores by size, and rounds to the target."""
    name, unit = ("Accuracy", " %") if results.score == "accuracy" else ("Mean squared error", "")
    scale, targets = 100.0 if unit else 1.0, {row.target for row in results.rows}
    [target] = targets if len(targets) == 1 else [None]
    drawn = []
    for title, y, x in (
        (f"{name} by round", results.score, "round"),
        ("Test loss by round", "loss", "round"),
        (f"{name} against megabytes sent", results.score, "megabytes"),
        (f"{name} against seconds", results.score, "seconds"),
        ("Training loss by round", "local_loss", "round"),
    ):
        if y is not None and any(_has(run, y) for group in groups for run in group.runs):
            scored = y == results.score
            at = None if target is None or not scored else scale * target
            by = scale if scored else 1.0
            drawn.append(_curves(groups, title, (y, x), by, unit if scored else "", at))
    by_size = _by_size(groups, f"{name} by clients' samples", scale, unit)
    drawn += [by_size] if by_size else []
    if len(groups) <= FEW and any(row.reached for row in results.rows):
        drawn.append(_rounds(results))
    return drawn


def heat_map(run: RunRecord, title: str, note: str) -> Chart | None:
    """Return a heat map of clients by classes; None if the data has no classes."""
    if run.clients is None or run.clients.counts is None:
        return None
    counts = run.clients.counts[:CLIENTS]
    if len(counts) < len(run.clients.counts):
        note = f"{note} The first {CLIENTS} of {len(run.clients.counts)} clients are shown."
    most = max(1.0, float(counts.max()))
    log = skewed(counts) and most > 1
    key = logarithmic(np.array([1.0, most])) if log else linear(np.array([0.0, most]))
    bar = np.linspace(1, 0, 64)[:, None]
    height = 12 * min(64, 8 + len(counts))
    across = _numbered(counts.shape[1], "class", 14)
    down = _numbered(len(counts), "client", height // LINE)
    picture, colours = _coloured(key.share(counts), counts > 0), _coloured(bar, bar >= 0)
    drawing = grid(across, down, picture, height, key, colours)
    said = f"{note} Colour: samples{', on a log scale' if log else ''}; blank: none."
    return Chart(title, said, drawing)


def _curves(
    groups: Sequence[Group],
    title: str,
    names: tuple[str, str],
    scale: float,
    unit: str,
    target: float | None,
) -> Chart:
    (y, x), series = names, []
    for number, group in enumerate(groups):
        runs = [run for run in group.runs if _has(run, y)]
        if not runs:
            continue
        values = band(runs, y, x)
        with np.errstate(over="ignore"):
            mean, low, high = (scale * v for v in (values.mean, values.low, values.high))
        ends = (low, high) if values.runs.max() > 1 else (None, None)
        series.append(Series(group.label, number, values.x, mean, *ends))
    shown, cut = _without_outliers(heights(series))
    notes = ["Line: mean over seeds; band: lowest to highest."] if _several(groups) else []
    up = linear(shown, unit=unit)
    notes += [f"Values above {up.high:g} are drawn at the edge."] if cut else []
    across = linear(np.concatenate([one.x for one in series]), AXES[x], zero=True)
    return Chart(title, " ".join(notes), plot(across, up, series, target))


def _without_outliers(values: Array) -> tuple[Array, bool]:
    """Return finite values, without a few that would make all others look the same."""
    finite = np.clip(values[np.isfinite(values)], -HUGE, HUGE)
    if not len(finite):
        return np.zeros(1), False
    median, most = np.quantile(finite, [0.5, CUT])
    if finite.max() - median <= 5 * (most - median) or most == median:
        return finite, False
    return finite[finite <= most], True


def _by_size(groups: Sequence[Group], title: str, scale: float, unit: str) -> Chart | None:
    """Return the score on clients' own test samples by their size, over tenths of the clients."""
    series, everyone = [], []
    for number, group in enumerate(groups):
        scored = [
            run.clients
            for run in group.runs
            if run.finished and run.clients and run.clients.scores is not None
        ]
        if not scored:
            continue
        sizes = np.concatenate([c.sizes for c in scored])
        scores = np.concatenate([c.scores for c in scored if c.scores is not None])
        order = np.argsort(sizes, kind="stable")
        tenths = [part for part in np.array_split(order, 10) if len(part)]
        x = np.array([sizes[part].mean() for part in tenths])
        y = scale * np.array([scores[part].mean() for part in tenths])
        series.append(Series(group.label, number, x, y))
        everyone.append(sizes)
    if not series:
        return None
    note = (
        "On each client's own test samples, by the last model. A point: mean over a tenth of "
        "the clients of all seeds."
    )
    means = np.concatenate([one.x for one in series])
    log = skewed(np.concatenate(everyone)) and means.min() > 0
    across = (logarithmic if log else linear)(means, "training samples of a client")
    up = linear(np.concatenate([one.y for one in series]), unit=unit)
    return Chart(title, note, plot(across, up, series))


def _rounds(results: Results) -> Chart:
    """Return a dot with the deviation as whiskers for each group that reached the target."""
    rows, table = results.rows, results.table()
    column = next(i for i, title in enumerate(table.titles) if title.startswith("rounds to"))
    series, names = [], []
    for number, row in enumerate(rows):
        names.append(f"{row.label}: {table.rows[number][column]}")
        if row.to_target.mean is not None:
            at, off = np.array([row.to_target.mean]), row.to_target.deviation or 0.0
            y = np.array([float(number)])
            series.append(Series(row.label, number, at, y, at - off, at + off, True, False))
    ends = [one.high for one in series if one.high is not None]
    across = linear(np.concatenate(ends), "round", zero=True)
    note = "Mean over the seeds that got there; whisker: sample deviation."
    return Chart(table.titles[column].capitalize(), note, dots(across, names, series))


def _coloured(shares: Array, shown: np.ndarray) -> str:
    """Return shares from 0 to 1 as colours in a picture; cells that are not shown are clear."""
    places = np.nan_to_num(shares) * (len(HEAT) - 1)
    channels = [np.interp(places, range(len(HEAT)), colour) for colour in zip(*HEAT, strict=True)]
    return png(np.stack([*(channel / 255 for channel in channels), shown.astype(np.float64)]))


def _numbered(count: int, title: str, most: int) -> Scale:
    """Return the scale of cells, with a round distance between labels and at most so many."""
    steps = (1, 2, 5, 10, 20, 50, 100, 200, 500, count)
    step = next(step for step in steps if count / step <= most)
    every = named([str(i) for i in range(count)], title)
    return replace(every, ticks=every.ticks[::step])


def _several(groups: Sequence[Group]) -> bool:
    return any(len(group.runs) > 1 for group in groups)


def _has(run: RunRecord, name: str) -> bool:
    return not bool(np.isnan(run.metrics[name]).all())
