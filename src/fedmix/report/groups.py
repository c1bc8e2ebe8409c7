"""Groups of runs that differ only in their seed, labelled by what distinguishes them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedmix.experiment.labels import ALGORITHM, Settings, labels
from fedmix.report.load import RunRecord

NAMED = 3  # groups that are named before "and 4 more"


@dataclass(frozen=True)
class Group:
    """Runs with the same settings but for the seed, sorted by seed."""

    label: str
    runs: tuple[RunRecord, ...]

    @property
    def settings(self) -> Settings:
        """The settings that its runs have in common."""
        return self.runs[0].settings

    @property
    def target(self) -> float | None:
        """The score to reach; it is a setting, so the same in all runs."""
        return self.runs[0].target


def grouped(runs: Sequence[RunRecord]) -> list[Group]:
    """Return the groups of these runs, sorted by label, with numbers in labels by size.

    If there are several data sets, a label names its own after the algorithm.
    """
    apart = by_data(runs)
    groups = [
        replace(group, label=_inserted(group, name)) if len(apart) > 1 else group
        for name, same in apart.items()
        for group in same
    ]
    return sorted(groups, key=lambda group: natural(group.label))


def by_data(runs: Sequence[RunRecord]) -> dict[str, list[Group]]:
    """Return the groups of each data set, since those of different ones cannot be compared."""
    apart: dict[str, list[RunRecord]] = {}
    for run in runs:
        apart.setdefault(run.settings.get("data.name", ""), []).append(run)
    return {name: _grouped(same) for name, same in apart.items()}


def _inserted(group: Group, name: str) -> str:
    first = group.runs[0].algorithm
    return f"{first} {name}{group.label.removeprefix(first)}"


def _grouped(runs: Sequence[RunRecord]) -> list[Group]:
    together: dict[frozenset[tuple[str, str]], list[RunRecord]] = {}
    for run in runs:
        together.setdefault(frozenset(run.settings.items()), []).append(run)
    names = labels([{**run.settings, ALGORITHM: run.algorithm} for run, *_ in together.values()])
    groups = [
        Group(name, tuple(sorted(members, key=lambda run: natural(run.seed))))
        for name, members in zip(names, together.values(), strict=True)
    ]
    return sorted(groups, key=lambda group: natural(group.label))


def main(groups: Sequence[Group]) -> dict[str, Group]:
    """Return the group of each algorithm that has most runs, and fewest unusual settings."""
    order = sorted(groups, key=lambda group: (-len(group.runs), group.label.count("=")))
    found: dict[str, Group] = {}
    for group in order:
        found.setdefault(group.runs[0].algorithm, group)
    return found


def among(groups: Sequence[Group]) -> str:
    """Return the labels of some groups in a few words."""
    labels = [group.label for group in groups]
    more = f" and {len(labels) - NAMED} more" if len(labels) > NAMED + 1 else ""
    return ", ".join(labels[: NAMED if more else None]) + more


def natural(text: str) -> list[tuple[float, str]]:
    """Return a sort key by which 0.05 comes before 0.1, and 9 before 10."""
    return [
        (float(part), "") if part[:1].isdecimal() else (0.0, part)
        for part in re.split(r"([0-9]+(?:\.[0-9]+)?)", text)
    ]
