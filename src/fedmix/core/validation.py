"""What a setting may be: a whole number, a number, a flag, a word, an object of a class.

All else is refused in one sentence. Numbers of numpy count as numbers; True and False never do.
What is accepted is given back as it came.
"""

from textwrap import shorten
from typing import Any, TypeVar

import numpy as np

from fedmix.core.errors import BadInput, described

T = TypeVar("T")


def is_number(value: object) -> bool:
    """Whether it is a number at all, be it NaN."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def is_whole(value: object, least: int = 1) -> bool:
    """Whether it is a whole number, and at least so large."""
    return is_number(value) and isinstance(value, int | np.integer) and bool(value >= least)


def whole(what: str, value: Any, least: int = 1) -> Any:
    """Refuse what is no whole number of at least `least`.

    >>> whole("epochs", True)
    Traceback (most recent call last):
    fedmix.core.errors.BadInput: epochs=True must be at least 1, and a whole number
    """
    if not is_whole(value, least):
        raise BadInput(f"{what}={shown(value)} must be at least {least}, and a whole number")
    return value


def number(what: str, value: Any) -> Any:
    """Refuse what is no number; its range is for the caller to judge."""
    if not is_number(value):
        raise BadInput(f"{what}={shown(value)} is no number; give one")
    return value


def flag(what: str, value: Any) -> None:
    """Refuse what is neither True nor False."""
    if not isinstance(value, bool | np.bool_):
        raise BadInput(f"{what}={shown(value)} must be True or False")


def one_of(what: str, value: Any, *allowed: str) -> None:
    """Refuse a word that is not among those allowed."""
    if not isinstance(value, str) or value not in allowed:
        raise BadInput(f"{what}={shown(value)} is unknown; choose one of {', '.join(allowed)}")


def instance(what: str, value: Any, kind: type[T] | tuple[type[T], ...], advice: str) -> T:
    """Refuse an object of another class, and say what to give."""
    if not isinstance(value, kind):
        raise BadInput(f"`{what}` is {described(value)}; {advice}")
    return value


def shown(value: object) -> str:
    """A value on one line, and not all of it where it is long."""
    return shorten(
        repr(value.item() if isinstance(value, np.generic) else value), 80, placeholder=" ..."
    )
