"""A picture of the score by round, as PNG or SVG."""

from collections.abc import Sequence
from pathlib import Path

from fedmix.errors import BadInput
from fedmix.files import check_picture
from fedmix.report.files import write_figure
from fedmix.report.groups import grouped
from fedmix.report.load import RunRecord
from fedmix.report.results import table_of
from fedmix.report.series import band, style

DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}


def draw(runs: Sequence[RunRecord], path: Path) -> None:
    """Mean score of each group by round, with the range over its seeds."""
    check_picture(path)
    groups = grouped(runs)
    score = table_of(groups).score
    if score is None:
        raise BadInput("none of these runs has been evaluated yet, so there is nothing to draw; wait for the first evaluation")
    from matplotlib.figure import Figure

    scale = 100 if score == "accuracy" else 1
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for index, group in enumerate(groups):
        seen = [run for run in group.runs if run.score]
        if seen:
            curve, (colour, dash) = band(seen, score), style(index)
            axes.plot(curve.x, scale * curve.mean, DASHES[dash], color=colour, label=group.label, linewidth=2)
            axes.fill_between(curve.x, scale * curve.low, scale * curve.high, color=colour, alpha=0.15, linewidth=0)
    axes.set(xlabel="round", ylabel="test accuracy, %" if score == "accuracy" else "mean squared error")
    for text in axes.legend(frameon=False).get_texts():
        text.set_parse_math(False)  # a label is text, also with dollar signs in it
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    write_figure(path, figure)
