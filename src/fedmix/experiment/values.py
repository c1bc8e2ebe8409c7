"""The values of an experiment as nested dicts, before they are validated."""

import hashlib
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from fedmix.core.errors import BadInput
from fedmix.core.files import leaves, printable, read_toml
from fedmix.core.registry import ALGORITHMS
from fedmix.core.validation import shown
from fedmix.experiment.sections import NAMED

LARGEST = 1 << 20  # largest size of an experiment file, in bytes


def read_values(path: Path) -> dict[str, Any]:
    """Read the values of a TOML file, without validation.

    Raises:
        BadInput: The file cannot be read, or it records a script's own federation.
    """
    values = read_toml(path, LARGEST, "give a preset's name or a TOML file of a few lines")
    if "recorded" in values:
        raise BadInput(
            f"{path} tells of a script's own federation, which that script alone can make; run the "
            "script again"
        )
    return values


def section_of(values: Mapping[str, Any], section: str) -> dict[str, Any]:
    """Return a section of values that may be invalid; empty if it is missing or not a section."""
    found = values.get(section)
    return found if isinstance(found, dict) else {}


def changed(values: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with some settings changed, given by dotted path, without validation.

    Raises:
        BadInput: A path leads through a value that is not a section.
    """
    new = deepcopy(dict(values))
    # Names come first, since another name has other fields.
    for path in sorted(settings, key=lambda path: not path.endswith(".name")):
        value = settings[path]
        *sections, key = path.split(".")
        at = new
        for section in sections:
            at = at.setdefault(section, {})
            if not isinstance(at, dict):
                raise BadInput(printable(f"{path}: {section} is a value, not a section"))
        if key == "name" and at.get(key, value) != value and sections and sections[0] != "engine":
            at.clear()
            if sections == ["objective"] and not any(p.startswith("exchange.") for p in settings):
                new.pop("exchange", None)
        at[key] = value
    return new


def takes(values: Mapping[str, Any], path: str) -> bool:
    """Whether such an experiment has a setting, given by dotted path.

    It is True if that is not known; validation decides then.
    """
    section, _, key = path.rpartition(".")
    if section == "exchange":
        section, key = "objective", "per"  # objectives that use means have it
    known = NAMED.get(section, {}).get(str(section_of(values, section).get("name")))
    return known is None or key in known.model_fields


def algorithm_of(values: Mapping[str, Any]) -> str:
    """Return the command line's name for an objective and its exchange."""
    objective, exchange = section_of(values, "objective"), section_of(values, "exchange")
    name = str(objective.get("name", "run"))
    known = {n: make() for n, make in ALGORITHMS.items()}
    fitting = {
        n: len(a.settings) + len(a.exchange or {})
        for n, a in known.items()
        if (a.objective, a.prox) == (name, False)
        and a.settings.items() <= objective.items()
        and (a.exchange or {}).items() <= exchange.items()
    }
    base = max(fitting, key=lambda n: fitting[n], default=name)
    if objective.get("layer"):
        base = f"hidden-{base}"
    if not objective.get("mu"):
        return base
    prox = [n for n, a in known.items() if a.prox and a.objective == base]
    return prox[0] if prox else f"{base}+prox"


def old_identity(values: Mapping[str, Any]) -> str:
    """Return what identified a run before ids had a schema: a hash of all settings in its file.

    Args:
        values: The values of a folder's experiment.toml, in its order.
    """
    engine = {k: v for k, v in section_of(values, "engine").items() if k != "processes"}
    digest = hashlib.sha256(toml({**values, "rounds": 1, "engine": engine}).encode())
    name, seed = section_of(values, "data").get("name"), values.get("seed")
    return f"{name}-{algorithm_of(values)}-s{seed}-{digest.hexdigest()[:10]}"


def refuse_huge(values: Mapping[str, Any]) -> None:
    """Raise BadInput for an integer that could be written to a file, but not read again."""
    for path, value in leaves(values):
        if isinstance(value, int) and value.bit_length() > 64:
            raise BadInput(f"{path}={shown(value)} has more than 64 bits; give a smaller number")


def toml(values: Mapping[str, Any]) -> str:
    """Format nested values as TOML; those that are in no section come first.

    Raises:
        BadInput: A number is larger than what `read_values` takes.
    """
    import tomli_w

    refuse_huge(values)
    flat = {k: v for k, v in values.items() if not isinstance(v, dict)}
    return tomli_w.dumps(flat | {k: v for k, v in values.items() if isinstance(v, dict)})
