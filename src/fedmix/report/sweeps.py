"""Charts of the score over a setting that was swept, all else equal."""

from collections.abc import Mapping, Sequence

import numpy as np

from fedmix.experiment.labels import ALGORITHM, differing, labels
from fedmix.report.groups import Group, natural
from fedmix.report.results import Results, Spread
from fedmix.report.svg import Chart, Series, heights, linear, named, plot

LEAST = 3  # values that make a sweep


def sweeps(groups: Sequence[Group]) -> list[Chart]:
    """Return a chart for each setting that takes at least three values, most of them numbers.

    A line joins groups that differ in nothing else. A point has the deviation over seeds.
    """
    done = [group for group in groups if any(run.score for run in group.runs)]
    charts = []
    for key in differing([group.settings for group in done]):
        lines = _lines(done, key)
        if lines:
            charts.append(_chart(key, lines, Results.of(done)))
    return charts


def _lines(groups: Sequence[Group], key: str) -> list[Mapping[str, Group]]:
    """Return the groups of each line by their value of a setting, in order."""
    together: dict[frozenset[tuple[str, str]], dict[str, Group]] = {}
    for group in groups:
        rest = frozenset((k, v) for k, v in group.settings.items() if k != key)
        if key in group.settings:
            together.setdefault(rest, {})[group.settings[key]] = group
    return [
        {value: line[value] for value in sorted(line, key=natural)}
        for line in together.values()
        if len(line) >= LEAST and sum(map(_numeric, line)) >= len(line) - 1
    ]


def _chart(key: str, lines: Sequence[Mapping[str, Group]], results: Results) -> Chart:
    values = sorted({value for line in lines for value in line}, key=natural)
    names = labels([_without(next(iter(line.values())), key) for line in lines])
    scale, unit = (100.0, " %") if results.score == "accuracy" else (1.0, "")
    series = []
    for number, (name, line) in enumerate(zip(names, lines, strict=True)):
        spreads = {
            value: Spread.of([run.scores.last_ten for run in group.runs])
            for value, group in line.items()
        }
        known = {v: s for v, s in spreads.items() if s.mean is not None}
        mean = scale * np.array([s.mean for s in known.values()], np.float64)
        off = scale * np.array([s.deviation or 0.0 for s in known.values()])
        x = np.array([values.index(v) for v in known], np.float64)
        said = [
            f"{name}, {key} = {v}: {s.text(scale, 1 if unit else None)}{unit}, "
            f"{len(line[v].runs)} run{'s' if len(line[v].runs) > 1 else ''}"
            for v, s in known.items()
        ]
        series.append(Series(name, number, x, mean, mean - off, mean + off, True, texts=said))
    title = f"{'Accuracy' if unit else 'Mean squared error'} by {key}"
    note = f"Mean of {results.of_which}; whisker: sample deviation over seeds."
    drawing = plot(named(values, key), linear(heights(series), unit=unit), series)
    return Chart(title, note, drawing, series)


def _without(group: Group, key: str) -> dict[str, str]:
    rest = {k: v for k, v in group.settings.items() if k != key}
    return rest | {ALGORITHM: group.runs[0].algorithm}


def _numeric(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True
