"""What is wrong with the values of an experiment, in sentences."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from fedmix.core.nearest import choice, nearest
from fedmix.experiment.values import section_of

if TYPE_CHECKING:
    from pydantic import ValidationError

LONGEST = 200  # most characters of a wrong value in a message


Listed = Sequence[tuple[str, str, Any, str]]  # every setting, as `spec.settings` yields them


def sentence(
    error: "ValidationError",
    values: Mapping[str, Any],
    listed: Listed,
    *,
    where: str,
    origin: Mapping[str, str],
) -> str:
    """Say what is wrong with each value, and where it came from.

    Args:
        error: What validation found.
        values: The values by section.
        listed: Every setting that there is.
        where: Where the values came from.
        origin: The same by dotted path, for values that came from elsewhere.
    """
    mistakes = [
        (_source(path, where, origin), said) for path, said in _mistakes(error, values, listed)
    ]
    return "; ".join(
        f"{source}: {'; '.join(said for _, said in all_)}"
        for source, all_ in groupby(mistakes, itemgetter(0))
    )


def _source(path: str, where: str, origin: Mapping[str, str]) -> str:
    """Say where the value at a path came from; without a path, name all sources."""
    if not path:
        return f"{where} with {' and '.join(sorted(set(origin.values())))}" if origin else where
    within = (
        source
        for at, source in origin.items()
        if f"{path}.".startswith(f"{at}.") or f"{at}.".startswith(f"{path}.")
    )
    return next(within, where)


def _mistakes(
    error: "ValidationError", values: Mapping[str, Any], listed: Listed
) -> Iterator[tuple[str, str]]:
    """Yield the dotted path of each mistake, or an empty one, and a sentence about it."""
    wrong: dict[str, list[str]] = {}
    for mistake in error.errors():
        path = [str(part) for part in mistake["loc"]]
        at: Any = values
        shown = []
        # pydantic puts the section's name, or a type of a union, between the keys; drop these
        for part in path:
            if isinstance(at, Mapping) and part in at:
                at = at[part]
                shown.append(part)
            elif part == path[-1] and mistake["type"] == "missing":
                shown.append(part)
        dotted = ".".join(shown) or "experiment"
        match mistake["type"]:
            case "extra_forbidden":
                # If the section does not exist, name the setting in it.
                while isinstance(at, Mapping) and at:
                    key, at = next(iter(at.items()))
                    shown.append(str(key))
                dotted = ".".join(shown)
                near = _nearest(shown, values, listed)
                yield dotted, f"{dotted}={_shown(at)} is not a setting{near}"
            case "missing" | "union_tag_not_found":
                missing = dotted if mistake["type"] == "missing" else f"{dotted}.name"
                yield "", f"{missing} is missing; give it a value"
            case "union_tag_invalid":
                name = at.get("name")
                known = str(mistake["ctx"]["expected_tags"]).replace("'", "").split(", ")
                said = f"{dotted}.name={_shown(name)} is unknown; {choice(str(name), known)}"
                yield f"{dotted}.name", said
            case "value_error":
                said = str(mistake["ctx"]["error"])
                named = re.match(r"(\w+\.\w+)=", said)
                yield named[1] if named else "", said
            case _:
                wrong.setdefault(f"{dotted}={_shown(at)}", []).append(mistake["msg"])
    for what, reasons in wrong.items():  # several for a setting of several types
        *others, last = (said.removeprefix("Input should be ") for said in reasons)
        said = f"should be {', '.join(others)} or {last}" if others else reasons[0]
        yield what.partition("=")[0], f"{what} {said.removeprefix('Input ')}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _nearest(shown: list[str], values: Mapping[str, Any], listed: Listed) -> str:
    """Say which setting of these values, or of others, a wrong path may have meant."""
    *section, key = shown
    named = {part: str(section_of(values, part).get("name", "")) for part in values}
    mine = [path for path, _, _, of in listed if of in ("", named.get(path.split(".")[0]))]
    there = [path.rpartition(".")[2] for path in mine if path.split(".")[:-1] == section]
    if section and there:
        near = nearest(key, there)
        return (
            f"; did you mean {'.'.join([*section, near])}?"
            if near
            else f"; known are {', '.join(there)}"
        )
    every = list(dict.fromkeys([*mine, *(path for path, *_ in listed)]))
    same = [path for path in mine if path.endswith(f".{key}")] or [
        path for path in every if path.endswith(f".{key}")
    ]
    top = list(dict.fromkeys(path.partition(".")[0] for path, *_ in listed))
    meant = " or ".join(same[:3]) or nearest(".".join(shown), [*top, *every])
    return f"; did you mean {meant}?" if meant else f"; known are {', '.join(top)}"
