"""Runs that differ only in their seed form a group, and a group is called by what tells it from the
others.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedmix.report.load import RunRecord

# in labels the name that the command line has: fedprox is the objective fedavg with a μ
ALGORITHM = "objective.name"
SECTIONS = (
    "objective",
    "exchange",
    "data",
    "model",
    "training",
    "engine",
)  # the first is the likeliest to be of interest
SIGNS = {
    "lam": "λ",
    "mu": "μ",
    "alpha": "α",
    "noise": "σ",
    "m": "M",
    "clients_per_round": "K",
    "epochs": "E",
    "batch_size": "B",
}
Settings = Mapping[str, str]


@dataclass(frozen=True)
class Group:
    """Runs with the same settings but for the seed, by seed."""

    label: str
    runs: tuple[RunRecord, ...]

    @property
    def settings(self) -> Settings:
        """What its runs have in common."""
        return self.runs[0].settings

    @property
    def target(self) -> float | None:
        """The score to reach; a setting, so the same in all runs."""
        return self.runs[0].target


def grouped(runs: Sequence[RunRecord]) -> list[Group]:
    """The groups by label, numbers in it by size."""
    together: dict[frozenset[tuple[str, str]], list[RunRecord]] = {}
    for run in runs:
        together.setdefault(frozenset(run.settings.items()), []).append(run)
    names = labels([{**run.settings, ALGORITHM: run.algorithm} for run, *_ in together.values()])
    groups = [
        Group(name, tuple(sorted(members, key=lambda run: _natural(run.seed))))
        for name, members in zip(names, together.values(), strict=True)
    ]
    return sorted(groups, key=lambda group: _natural(group.label))


def by_data(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """The groups of each data set, whose curves have nothing to say to those of another."""
    apart: dict[str, list[Group]] = {}
    for group in groups:
        apart.setdefault(group.settings.get("data.name", ""), []).append(group)
    return apart


def differing(all_settings: Sequence[Settings]) -> list[str]:
    """The settings that are not the same everywhere, the likeliest to be of interest first."""
    keys = {key for settings in all_settings for key in settings}
    return sorted(
        (key for key in keys if len({settings.get(key) for settings in all_settings}) > 1),
        key=_rank,
    )


def labels(all_settings: Sequence[Settings]) -> list[str]:
    """For each its algorithm and as few more settings as tell it from the others.

    >>> fedavg = {"objective.name": "fedavg"}
    >>> fedmix = {"objective.name": "fedmix", "objective.lam": "0.05"}
    >>> labels([fedavg, fedmix]), labels([fedavg, fedmix, fedmix | {"objective.lam": "0.1"}])
    (['fedavg', 'fedmix'], ['fedavg', 'fedmix λ=0.05', 'fedmix λ=0.1'])
    """
    keys = _telling(all_settings)
    return [
        _label(settings, _needed(settings, keys, all_settings), keys) for settings in all_settings
    ]


def _telling(all_settings: Sequence[Settings]) -> list[str]:
    """Settings that tell all groups apart, chosen greedily: each the one that separates most, the
    algorithm always.
    """
    chosen, left = [ALGORITHM], [key for key in differing(all_settings) if key != ALGORITHM]
    while left and _distinct(all_settings, chosen) < len(all_settings):
        best = max(
            left, key=lambda key: _distinct(all_settings, [*chosen, key])
        )  # the first of equals
        left.remove(best)
        chosen.append(best)
    return chosen


def _distinct(all_settings: Sequence[Settings], keys: Sequence[str]) -> int:
    return len({tuple(settings.get(key) for key in keys) for settings in all_settings})


def _needed(settings: Settings, keys: Sequence[str], all_settings: Sequence[Settings]) -> list[str]:
    """Those of the keys without which another group would be called the same."""
    kept = list(keys)
    for key in reversed(keys[1:]):
        rest = [k for k in kept if k != key]
        if sum(all(other.get(k) == settings.get(k) for k in rest) for other in all_settings) == 1:
            kept = rest
    return kept


def _label(settings: Settings, keys: Sequence[str], all_keys: Sequence[str]) -> str:
    parts = [settings.get(ALGORITHM, "run")]
    for key in keys[1:]:
        if key in settings:
            last = key.rpartition(".")[2]
            shared = sum(other.rpartition(".")[2] == last for other in all_keys) > 1
            name = key if shared else SIGNS.get(last, last)
            parts.append(settings[key] if last == "name" else f"{name}={settings[key]}")
    return " ".join(parts)


def _natural(text: str) -> list[tuple[float, str]]:
    """A sort key in which 0.05 comes before 0.1, and 9 before 10."""
    return [
        (float(part), "") if part[:1].isdecimal() else (0.0, part)
        for part in re.split(r"([0-9]+(?:\.[0-9]+)?)", text)
    ]


def _rank(key: str) -> tuple[bool, int, bool, str]:
    """Names first, for other settings follow from a data set; then, of a section, what has a sign:
    M and not its cut-off.
    """
    section, _, last = key.rpartition(".")
    return (
        last != "name",
        SECTIONS.index(section) if section in SECTIONS else len(SECTIONS),
        last not in SIGNS,
        key,
    )
