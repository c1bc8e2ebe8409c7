"""The part of a page on one data set: its table, charts, clients and settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedmix.experiment.labels import BLANK, SIGNS, differing
from fedmix.report.baseline import Against, against, chosen
from fedmix.report.figures import charts, heat_map
from fedmix.report.groups import NAMED, Group, among, main, natural
from fedmix.report.load import RunRecord
from fedmix.report.results import Marked, Results
from fedmix.report.series import look
from fedmix.report.svg import Chart
from fedmix.report.sweeps import sweeps

MAPS = 2
DRAWN = 8  # groups whose curves are shown at first
Shown = tuple[str, float | None, str, float | None, str]
"""Difference and p from a baseline: each as text and as a number to sort by, then all in words."""


@dataclass(frozen=True)
class Section:
    """What the page shows of a data set.

    Attributes:
        id: Of its element.
        name: Of the data set.
        groups: Its groups, in the order of all that follows.
        drawn: Numbers of the groups whose curves are shown at first.
        results: The results.
        rows: The cells of each group's row.
        words: What finds each group besides its label: its settings that are not the same in all.
        baseline: Number of the group that others are compared with at first: the one that was asked
            for, unless it shares no seed with another.
        against: For each possible baseline, what each row shows; empty without any.
        charts: Curves of the groups.
        sweeps: Charts over settings.
        sizes: Sentences on clients.
        maps: Heat maps of clients and classes.
        settings: For each setting with several values, the groups that have each of them.
        shared: The other settings, each with the value of all groups that have it.
        privacy: Sentences on privacy and whose they are.
    """

    id: str
    name: str
    groups: Sequence[Group]
    drawn: Sequence[int]
    results: Results
    rows: Sequence[Sequence[Marked]]
    words: Sequence[str]
    baseline: int
    against: Mapping[int, Sequence[Shown | None]]
    charts: Sequence[Chart]
    sweeps: Sequence[Chart]
    sizes: Sequence[str]
    maps: Sequence[Chart]
    settings: Mapping[str, Sequence[tuple[str, str]]]
    shared: Mapping[str, str]
    privacy: Sequence[tuple[str, str]]

    @property
    def runs(self) -> int:
        """Number of runs."""
        return sum(len(group.runs) for group in self.groups)


def section(id_: str, name: str, groups: Sequence[Group], baseline: str | None) -> Section:
    """Return the section on a data set; see `Section`."""
    results = Results.of(groups)
    all_against = {i: against(groups, group) for i, group in enumerate(groups)}
    comparable = [i for i, every in all_against.items() if any(one.seeds for one in every)]
    asked = chosen(groups, baseline) or chosen(groups)
    first = next(i for i, group in enumerate(groups) if group is asked)
    settings, every = _settings(groups), {k: v for g in groups for k, v in g.settings.items()}
    return Section(
        id=id_,
        name=name or "no data set",
        groups=groups,
        drawn=_drawn(groups, results),
        results=results,
        rows=results.marked(),
        words=_words(groups),
        baseline=first if first in comparable else min(comparable, default=first),
        against={i: [_shown(one, results.score) for one in all_against[i]] for i in comparable},
        charts=charts(groups, results),
        sweeps=sweeps(groups),
        sizes=_sizes(groups),
        maps=_heat_maps(groups),
        settings=settings,
        shared={k: every[k] for k in sorted(every.keys() - settings.keys(), key=natural)},
        privacy=_privacy(groups),
    )


def rules(one: Section) -> str:
    """Return the style rules that show the curves of the groups that are drawn, and no others.

    The script writes the same rules when the choice changes.
    """
    where = f"#{one.id} .own"
    looks = [f"{where} .k{i} {{ {look(k)} }}" for k, i in enumerate(one.drawn)]
    kept = ", ".join(f".k{i}" for i in one.drawn)
    return "\n".join([f"{where} .series:not({kept}) {{ display: none; }}", *looks])


def _drawn(groups: Sequence[Group], results: Results) -> list[int]:
    """Return all groups if they are few, else the best of the algorithms' main groups.

    Before the first test, these are the first groups.
    """
    mains = main(groups).values()
    best = sorted([i for i in results.ranked() if groups[i] in mains][:DRAWN])
    return best if best and len(groups) > DRAWN else list(range(len(groups)))[:DRAWN]


def _shown(one: Against, score: str | None) -> Shown | None:
    if one.mean is None:
        return None
    scale, unit = (100.0, " points") if score == "accuracy" else (1.0, "")

    def text(value: float) -> str:
        return f"{scale * value:+.1f}" if unit else f"{value:+.3g}"

    p = "–" if one.p is None else f"{one.p:.2g}"
    seeds = f"{one.seeds} seed{'s' if one.seeds > 1 else ''}"
    if one.tested is None:
        why = "no test" if one.seeds == 1 else "the same in all: no test"
        return text(one.mean), scale * one.mean, p, one.p, f"{seeds}, {why}"
    low, high, alone = one.tested
    said = f"95 % interval {text(low)} to {text(high)}{unit}, {seeds}, p = {alone:.2g} alone"
    return text(one.mean), float(f"{scale * one.mean:.6g}"), p, one.p, said


def _words(groups: Sequence[Group]) -> list[str]:
    """Return each group's settings that differ among these, by path, and by sign if they have one.

    A label leaves out what is usual, such as the λ that most have.
    """
    keys = differing([group.settings for group in groups])
    names = {key: (key, SIGNS.get(key.rpartition(".")[2], key)) for key in keys}
    return [
        " ".join(
            f"{n}={group.settings[k]}"
            for k in keys
            if k in group.settings
            for n in dict.fromkeys(names[k])
        )
        for group in groups
    ]


def _settings(groups: Sequence[Group]) -> dict[str, list[tuple[str, str]]]:
    """Return for each setting that takes several values which groups have which."""
    found = {}
    for key in differing([group.settings for group in groups]):
        having: dict[str, list[Group]] = {}
        for group in groups:
            having.setdefault(group.settings.get(key, BLANK), []).append(group)
        if len(having.keys() - {BLANK}) > 1:
            order = sorted(having, key=lambda value: (value == BLANK, natural(value)))
            found[key] = [(value, _whose(having[value], len(groups))) for value in order]
    return found


def _whose(some: Sequence[Group], all_: int) -> str:
    return among(some) if len(some) <= NAMED else f"{len(some)} of {all_} settings"


def _dealt(groups: Sequence[Group]) -> list[tuple[list[Group], RunRecord]]:
    """Return, for each partition, the groups that use it and a run that records its clients."""
    ways: dict[frozenset[tuple[str, str]], list[Group]] = {}
    for group in groups:
        if any(run.clients for run in group.runs):
            way = frozenset((k, v) for k, v in group.settings.items() if k.startswith("data."))
            ways.setdefault(way, []).append(group)
    return [
        (same, next(run for group in same for run in group.runs if run.clients))
        for same in sorted(ways.values(), key=len, reverse=True)
    ]


def _heat_maps(groups: Sequence[Group]) -> list[Chart]:
    dealt = _dealt(groups)
    maps = []
    for same, run in dealt:
        whose = "" if len(dealt) == 1 else f" of {among(same)}"
        others = {member.seed for group in same for member in group.runs} - {run.seed}
        note = f"Dealt out by seed {run.seed}{'; other seeds deal anew' if others else ''}."
        maps.append(heat_map(run, f"Clients and classes{whose}", note))
    return [chart for chart in maps if chart][:MAPS]


def _sizes(groups: Sequence[Group]) -> list[str]:
    """Return a sentence on the clients of each partition."""
    said: dict[str, list[Group]] = {}
    for same, run in _dealt(groups):
        assert run.clients is not None
        sizes = run.clients.sizes
        few, median, many, total = sizes.min(), np.median(sizes), sizes.max(), sizes.sum()
        text = (
            f"{len(sizes)} clients with {few:.0f} to {many:.0f} samples (median {median:.0f}), "
            f"{total:.0f} in all."
        )
        said.setdefault(text, []).extend(same)
    return [f"{among(same)}: {text}" if len(said) > 1 else text for text, same in said.items()]


def _privacy(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """Return each sentence on privacy, and whose it is."""
    said: dict[str, list[Group]] = {}
    for group in groups:
        for sentence in dict.fromkeys(
            run.privacy or "Not stated: a run states it after its last round." for run in group.runs
        ):
            said.setdefault(sentence, []).append(group)  # seeds may differ
    return [(sentence, among(same)) for sentence, same in said.items()]
