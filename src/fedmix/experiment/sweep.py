"""Experiments from a preset or a file, with the settings and sweeps of `--set`."""

import itertools
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Any

from fedmix.core.errors import BadInput
from fedmix.core.files import parse_toml
from fedmix.experiment.presets import PRESETS, RECOMMENDED, experiment, sections
from fedmix.experiment.spec import Experiment
from fedmix.experiment.values import algorithm_of, changed, read_values, section_of, takes


def experiments(
    what: str,
    algorithms: Sequence[str | None],
    rounds: int | None,
    seed: int | None,
    seeds: int,
    settings: Sequence[str],
    engine: str | None = None,
    device: str | None = None,
    processes: int | None = None,
) -> list[Experiment]:
    """Return every experiment of a sweep: algorithms x settings x seeds, each experiment once.

    Args:
        what: The name of a preset, or the path of a .toml file.
        algorithms: Names of algorithms; None is the file's own, or the recommended one for a
            preset.
        rounds, engine, device, processes: Settings that all experiments get; None leaves them.
        seed: The first seed; None is the preset's or the file's.
        seeds: The number of seeds, counted up from the first.
        settings: `KEY=VALUE` by dotted path; values split by commas are swept. An algorithm that
            does not have a setting runs without it, if another algorithm has it.

    Raises:
        BadInput: A setting is wrong, given twice or unknown to all, or two points of the sweep are
            the same run.
    """
    if not algorithms:
        raise BadInput("--algorithms names none; give some, such as fedavg,fedmix")
    if seeds < 1:
        raise BadInput(f"--seeds {seeds}: at least one is needed")
    keys = [setting.partition("=")[0] for setting in settings]
    if twice := [k for k in keys if keys.count(k) > 1]:
        raise BadInput(f"--set {twice[0]} is given twice; for a sweep, split its values by commas")
    if "seed" in keys and seeds > 1:
        raise BadInput("--set seed and --seeds contradict each other; use --seed and --seeds")
    fixed = {
        "seed": seed,
        "rounds": rounds,
        "engine.name": engine,
        "engine.device": device,
        "engine.processes": processes,
    }
    chosen = {k: v for k, v in fixed.items() if v is not None}
    if both := chosen.keys() & set(keys):
        raise BadInput(
            f"{both.pop()} is given by --set and by an option of its own; leave one of them out"
        )
    where = what if what.endswith(".toml") else f"preset {what}"
    origin = dict.fromkeys(chosen, "command line") | dict.fromkeys(keys, "--set")
    grid = [parse_setting(s) for s in settings]
    # an objective that is named has its own defaults, not those of the recommended form
    default = "fedmix" if "objective.name" in keys else RECOMMENDED
    bases = [changed(_base_values(what, algorithm, default), chosen) for algorithm in algorithms]
    if "objective.name" in keys:  # first, since another objective takes other settings
        names = grid.pop(keys.index("objective.name"))
        _refuse_twice([str(name) for _, name in names], [dict([name]) for name in names])
        bases = [changed(base, dict([name])) for base in bases for name in names]
    unknown = [path for (path, _), *_ in grid if not any(takes(base, path) for base in bases)]
    if unknown:
        bases = bases[-1:]  # one is enough: its validation raises the error
    found: dict[str, Experiment] = {}
    for base in bases:
        taken = (values for values in grid if values[0][0] in unknown or takes(base, values[0][0]))
        points = [dict(point) for point in itertools.product(*taken)]
        start = base.get("seed", 0)
        numbers = [{"seed": start + i} for i in range(seeds)] if type(start) is int else [{}]
        swept = [
            [Experiment.of(changed(base, number | p), where, origin) for number in numbers]
            for p in points
        ]
        _refuse_twice([few[0].id for few in swept], points)
        found |= {one.id: one for few in swept for one in few}
    return list(found.values())


def settings_of_one(experiment: Experiment, settings: Sequence[str]) -> list[str]:
    """Return the settings of a sweep with the values of one of its experiments.

    Args:
        experiment: One of those that `experiments` returned.
        settings: The settings that it was given.
    """
    values, chosen = experiment.values(), []
    for setting in settings:
        (path, first), *more = parse_setting(setting)
        if not takes(values, path):
            continue
        *sections, key = path.split(".")
        value = reduce(section_of, sections, values).get(key)
        among = [first, *(value for _, value in more)]
        texts = setting.partition("=")[2].split(",") if more else [setting.partition("=")[2]]
        chosen += [
            f"{path}={text.strip()}"
            for one, text in zip(among, texts, strict=True)
            if one == value or not more
        ]
    return chosen


def only_experiment(
    what: str, algorithm: str | None, rounds: int | None, seed: int | None, settings: Sequence[str]
) -> Experiment:
    """Return the one experiment that these arguments of `experiments` give.

    Raises:
        BadInput: A setting has several values, or is wrong.
    """
    for setting in settings:
        (path, _), *more = parse_setting(setting)
        if more:
            raise BadInput(
                f"--set {path} has several values, but this command takes one experiment; give one"
            )
    [chosen] = experiments(what, [algorithm], rounds, seed, 1, settings)
    return chosen


def parse_setting(setting: str) -> list[tuple[str, Any]]:
    """Parse `key=a,b` into [(key, a), (key, b)].

    A value is read as TOML; `none` is None, and what is not TOML is a string.

    Raises:
        BadInput: There is no key or no equals sign.
    """
    key, equals, text = setting.partition("=")
    if not equals or not key:
        raise BadInput(f"--set {setting!r} is not KEY=VALUE, such as objective.lam=0.1")
    parts = [text] if text.startswith("[") else text.split(",")
    return [(key, _value(part.strip())) for part in parts]


def _value(text: str) -> Any:
    if text in ("none", "None"):  # TOML has no null; None is Python's spelling
        return None
    try:
        return parse_toml(f"x = {text}".encode())["x"]
    except ValueError:
        return text


def _base_values(what: str, algorithm: str | None, default: str) -> dict[str, Any]:
    """Return the values of a preset, or of a file, which need not be valid before --set.

    Without an algorithm, a preset has the default, and a file its own.
    """
    if not what.endswith(".toml"):
        return experiment(what, algorithm or default).values()
    values = read_values(Path(what))
    if algorithm is None or algorithm == algorithm_of(values):
        return values
    name = str(section_of(values, "data").get("name"))
    if name not in PRESETS:
        raise BadInput(
            f"another algorithm needs a preset's λ and μ, and {name} has none; set [objective] in "
            f"{what}, and use run"
        )
    new = sections(algorithm, PRESETS[name])
    if "exchange" in new:  # the file's [exchange] holds for every algorithm that has one
        new["exchange"] = section_of(values, "exchange") | {"source": "pool"} | new["exchange"]
    return {k: v for k, v in values.items() if k != "exchange"} | new


def _refuse_twice(ids: Sequence[str], points: Sequence[dict[str, Any]]) -> None:
    """Raise BadInput if two points of a sweep are the same run, such as with `engine.processes`."""
    first: dict[str, dict[str, Any]] = {}
    for name, point in zip(ids, points, strict=True):
        if name in first:
            one, other = (
                " ".join(f"{path}={value}" for path, value in p.items())
                for p in (first[name], point)
            )
            raise BadInput(
                f"--set: {one} and {other} are the same run ({name}); leave one of them out"
            )
        first[name] = point
