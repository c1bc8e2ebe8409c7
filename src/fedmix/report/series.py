"""A metric over the runs of a group: mean and range at each round."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedmix.report.load import RunRecord
from fedmix.report.metrics import Array

COLOURS = (  # legible on white and on black
    "#2f7fc1",
    "#d55e00",
    "#0a9370",
    "#b3589a",
    "#8c7a1f",
    "#7f7f7f",
    "#c2473f",
    "#7a6bd1",
)
DASHES = {  # distinguish groups once all colours are used; in units of a chart
    "solid": "none",
    "dash": "16 9",
    "dot": "4 8",
    "dashdot": "16 8 4 8",
}
STYLES = len(COLOURS) * len(DASHES)


@dataclass(frozen=True)
class Band:
    """Mean, lowest and highest value at each x, and the number of runs there."""

    x: Array
    mean: Array
    low: Array
    high: Array
    runs: Array


def band(runs: Sequence[RunRecord], y: str, x: str = "round") -> Band:
    """Return `y` at each round, over the runs that have it there, against the mean of `x`.

    Args:
        runs: The runs of a group.
        y: Name of a metric.
        x: Name of another metric, or "megabytes".
    """
    rounds = np.unique(
        np.concatenate([run.metrics["round"][~np.isnan(run.metrics[y])] for run in runs])
    )
    ys, xs = (np.full((len(runs), len(rounds)), np.nan) for _ in range(2))
    for row, run in enumerate(runs):
        known = ~np.isnan(run.metrics[y])
        at = np.searchsorted(rounds, run.metrics["round"][known])
        ys[row, at] = run.metrics[y][known]
        xs[row, at] = quantity(run, x)[known]
    here = ~np.isnan(ys)
    count = here.sum(0).astype(np.float64)
    mean, mean_x = (np.where(here, values, 0).sum(0) / count for values in (ys, xs))
    return Band(
        mean_x, mean, np.where(here, ys, np.inf).min(0), np.where(here, ys, -np.inf).max(0), count
    )


def quantity(run: RunRecord, name: str) -> Array:
    """Return a column of the metrics, or for "megabytes" the traffic in both directions."""
    return (
        (run.metrics["bytes_up"] + run.metrics["bytes_down"]) / 1e6
        if name == "megabytes"
        else run.metrics[name]
    )


def style(index: int) -> tuple[str, str]:
    """Return the colour and the dash of a group."""
    return COLOURS[index % len(COLOURS)], [*DASHES][index // len(COLOURS) % len(DASHES)]


def look(index: int) -> str:
    """Return the style of a group as declarations for a style sheet."""
    colour, dash = style(index)
    return f"--c: {colour}; --dash: {DASHES[dash]};"
