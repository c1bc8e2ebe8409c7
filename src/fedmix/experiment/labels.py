"""Labels of experiments: what distinguishes each from the others."""

from collections import Counter
from collections.abc import Mapping, Sequence

from fedmix.core.files import flat
from fedmix.experiment.spec import Experiment

# labels use the command line's name of an algorithm: fedprox is the objective fedavg with a μ
ALGORITHM = "objective.name"
SECTIONS = (  # the most interesting first
    "objective",
    "exchange",
    "data",
    "model",
    "training",
    "updates",
    "engine",
)
SIGNS = {
    "lam": "λ",
    "mu": "μ",
    "alpha": "α",
    "noise": "σ",
    "noise_multiplier": "z",
    "m": "M",
    "clients_per_round": "K",
    "epochs": "E",
    "batch_size": "B",
}
OWN = ("objective.", "exchange.")  # settings that belong to an algorithm
BLANK = "–"  # a setting that is not set
Settings = Mapping[str, str]


def titles(experiments: Sequence[Experiment]) -> list[str]:
    """Return a title for each experiment: its label, with its data set and seed where they differ.

    One alone is named by its data set, algorithm and seed.
    """
    names, seeds = {e.data.name for e in experiments}, {e.seed for e in experiments}
    alone = len(experiments) == 1
    told = [dict(flat(e.values())) | {ALGORITHM: e.algorithm, "seed": ""} for e in experiments]
    keys = [tuple(sorted(one.items())) for one in told]
    label: dict[tuple[tuple[str, str], ...], str] = {}
    for name in names:
        same = {key: one for key, one in zip(keys, told, strict=True) if one["data.name"] == name}
        label |= zip(same, labels(list(same.values())), strict=True)
    return [
        (f"{e.data.name} " if alone or len(names) > 1 else "")
        + label[key]
        + (f" seed {e.seed}" if alone or len(seeds) > 1 else "")
        for key, e in zip(keys, experiments, strict=True)
    ]


def differing(all_settings: Sequence[Settings]) -> list[str]:
    """Return the settings that are not the same everywhere, the most interesting first."""
    keys = {key for settings in all_settings for key in settings}
    return sorted(
        (key for key in keys if len({settings.get(key) for settings in all_settings}) > 1),
        key=_rank,
    )


def labels(all_settings: Sequence[Settings]) -> list[str]:
    """Return a label for each: its algorithm, and those settings that are not the usual ones.

    A setting is usual if more than half have it, of all or, for the settings of an objective and
    its exchange, of all with the same algorithm.

    >>> fedavg = {"objective.name": "fedavg"}
    >>> fedmix = {"objective.name": "fedmix", "objective.lam": "0.05"}
    >>> labels([fedavg, fedmix]), labels([fedavg, fedmix, fedmix | {"objective.lam": "0.1"}])
    (['fedavg', 'fedmix'], ['fedavg', 'fedmix λ=0.05', 'fedmix λ=0.1'])
    """
    keys = _telling(all_settings)
    return [_label(settings, keys, all_settings) for settings in all_settings]


def usual(key: str, settings: Settings, all_settings: Sequence[Settings]) -> str | None:
    """Return what more than half of those like these settings have; None if there is no such."""
    alike = [
        other
        for other in all_settings
        if not key.startswith(OWN) or other.get(ALGORITHM) == settings.get(ALGORITHM)
    ]
    value, count = Counter(other.get(key, BLANK) for other in alike).most_common(1)[0]
    return value if 2 * count > len(alike) else None


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


def _label(settings: Settings, keys: Sequence[str], all_settings: Sequence[Settings]) -> str:
    parts = [settings.get(ALGORITHM, "run")]
    for key in keys[1:]:
        value = settings.get(key, BLANK)
        common = usual(key, settings, all_settings)
        if value == common or (value == BLANK and common is None):
            continue
        last = key.rpartition(".")[2]
        shared = sum(other.rpartition(".")[2] == last for other in keys) > 1
        name = key if shared else SIGNS.get(last, last)
        parts.append(value if last == "name" else f"{name}={value}")
    return " ".join(parts)


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
