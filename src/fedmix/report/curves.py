"""A picture of the score by round, as PNG or SVG."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from fedmix.core.errors import BadInput
from fedmix.core.files import check_picture
from fedmix.report.files import write_figure
from fedmix.report.groups import Group, by_data
from fedmix.report.load import RunRecord
from fedmix.report.results import Results
from fedmix.report.series import STYLES, band, style

DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
LETTERS = 48  # characters in a line of a legend
FEW = 8  # lines of legends that fit among the curves
BESIDE = {
    "loc": "upper left",
    "bbox_to_anchor": (1, 1),
    "fontsize": 8,
    "handlelength": 4,  # long enough to show dashes
}


def draw(runs: Sequence[RunRecord], path: Path | str) -> None:
    """Draw the mean score of each group by round, with the range over its seeds.

    Each data set has axes of its own.

    Raises:
        BadInput: The path is not that of a picture or cannot be written, or no run has a score.
    """
    path = Path(path)
    check_picture(path)
    apart = by_data(runs)
    score = Results.of([group for same in apart.values() for group in same]).score
    if score is None:
        raise BadInput(
            "none of these runs has been evaluated yet, so there is nothing to draw; wait for the "
            "first evaluation"
        )
    from matplotlib.figure import Figure

    panels = _panels(apart)
    lines = [sum(_wrapped(group.label).count("\n") + 1 for group in part) for _, part in panels]
    beside = sum(lines) > FEW
    heights = [max(4.0, 0.5 + 0.18 * count) for count in lines]
    figure = Figure(figsize=(11 if beside else 7, sum(heights)), layout="constrained")
    every = figure.subplots(len(panels), squeeze=False, height_ratios=heights)[:, 0]
    for axes, (title, part) in zip(every, panels, strict=True):
        _curves(axes, part, score)
        texts = axes.legend(frameon=False, **(BESIDE if beside else {})).get_texts()
        if len(panels) > 1:
            texts.append(axes.set_title(title))
        for text in texts:
            text.set_parse_math(False)  # dollar signs in a label are not math
    write_figure(path, figure)


def _panels(apart: Mapping[str, Sequence[Group]]) -> list[tuple[str, Sequence[Group]]]:
    """Return title and groups of each set of axes.

    That is a data set, or a part of it if it has more groups than there are line styles.
    """
    panels: list[tuple[str, Sequence[Group]]] = []
    for name, same in apart.items():
        parts = [same[i : i + STYLES] for i in range(0, len(same), STYLES)]
        titles = [
            f"{name}, part {i} of {len(parts)}" if len(parts) > 1 else name
            for i in range(1, len(parts) + 1)
        ]
        panels += [
            (t, part)
            for t, part in zip(titles, parts, strict=True)
            if any(run.score for g in part for run in g.runs)
        ]
    return panels


def _curves(axes: Any, groups: Sequence[Group], score: str) -> None:
    scale = 100 if score == "accuracy" else 1
    for index, group in enumerate(groups):
        seen = [run for run in group.runs if run.score]
        if seen:
            curve, (colour, dash) = band(seen, score), style(index)
            axes.plot(
                curve.x,
                scale * curve.mean,
                DASHES[dash],
                color=colour,
                label=_wrapped(group.label),
                linewidth=2,
            )
            axes.fill_between(
                curve.x,
                scale * curve.low,
                scale * curve.high,
                color=colour,
                alpha=0.15,
                linewidth=0,
            )
    axes.set(
        xlabel="round", ylabel="test accuracy, %" if score == "accuracy" else "mean squared error"
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


def _wrapped(label: str) -> str:
    return fill(label, LETTERS, break_on_hyphens=False)
