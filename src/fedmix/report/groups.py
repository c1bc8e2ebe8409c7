"""Groups of runs that differ only in their seed, labelled by what distinguishes them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedmix.report.load import RunRecord

# labels use the command line's name of an algorithm: fedprox is the objective fedavg with a μ
ALGORITHM = "objective.name"
SECTIONS = (  # the most interesting first
    "objective",
    "exchange",
    "data",
    "model",
    "training",
    "engine",
)
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
    """Return the groups of these runs, sorted by label, with numbers in labels by size."""
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
    """Return the groups by data set, since curves of different data sets cannot be compared."""
    apart: dict[str, list[Group]] = {}
    for group in groups:
        apart.setdefault(group.settings.get("data.name", ""), []).append(group)
    return apart


def differing(all_settings: Sequence[Settings]) -> list[str]:
    """Return the settings that are not the same everywhere, the most interesting first."""
    keys = {key for settings in all_settings for key in settings}
    return sorted(
        (key for key in keys if len({settings.get(key) for settings in all_settings}) > 1),
        key=_rank,
    )


def labels(all_settings: Sequence[Settings]) -> list[str]:
    """Return a label for each: its algorithm, and as few settings as make it unique.

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
    """Choose settings that distinguish all groups.

    The algorithm comes first, then greedily the setting that separates most groups.
    """
    chosen, left = [ALGORITHM], [key for key in differing(all_settings) if key != ALGORITHM]
    while left and _distinct(all_settings, chosen) < len(all_settings):
        best = max(left, key=lambda key: _distinct(all_settings, [*chosen, key]))
        left.remove(best)
        chosen.append(best)
    return chosen


def _distinct(all_settings: Sequence[Settings], keys: Sequence[str]) -> int:
    return len({tuple(settings.get(key) for key in keys) for settings in all_settings})


def _needed(settings: Settings, keys: Sequence[str], all_settings: Sequence[Settings]) -> list[str]:
    """Return those of the keys without which another group would have the same label."""
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
    """Return a sort key by which 0.05 comes before 0.1, and 9 before 10."""
    return [
        (float(part), "") if part[:1].isdecimal() else (0.0, part)
        for part in re.split(r"([0-9]+(?:\.[0-9]+)?)", text)
    ]


def _rank(key: str) -> tuple[bool, int, bool, str]:
    """Return a sort key of settings: names first, then by section, those with a sign first.

    Names come first since other settings follow from a data set. In a section, M comes before its
    cut-off.
    """
    section, _, last = key.rpartition(".")
    return (
        last != "name",
        SECTIONS.index(section) if section in SECTIONS else len(SECTIONS),
        last not in SIGNS,
        key,
    )
