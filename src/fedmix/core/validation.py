"""Checks of settings: a whole number, a number, a flag, a word, an instance of a class.

Every check raises BadInput with one sentence. Numbers of numpy count as numbers; True and False
never do. Accepted values are returned unchanged.
"""

import math
from textwrap import shorten
from typing import Any, TypeVar

import numpy as np

from fedmix.core.errors import BadInput, described
from fedmix.core.nearest import choice

T = TypeVar("T")


def is_number(value: object) -> bool:
    """Whether the value is a number (NaN included)."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def is_whole(value: object, least: int = 1) -> bool:
    """Whether the value is a whole number of at least `least`."""
    return is_number(value) and isinstance(value, int | np.integer) and bool(value >= least)


def whole(what: str, value: Any, least: int = 1) -> Any:
    """Return a whole number of at least `least`; raise BadInput otherwise.

    >>> whole("epochs", True)
    Traceback (most recent call last):
    fedmix.core.errors.BadInput: epochs=True must be at least 1, and a whole number
    """
    if not is_whole(value, least):
        raise BadInput(f"{what}={shown(value)} must be at least {least}, and a whole number")
    return value


def number(what: str, value: Any) -> Any:
    """Return a number of any size; raise BadInput otherwise. The caller checks the range."""
    if not is_number(value):
        raise BadInput(f"{what}={shown(value)} is no number; give one")
    return value


def positive(what: str, value: Any) -> None:
    """Raise BadInput unless the value is a positive, finite number."""
    if not 0 < number(what, value) < math.inf:
        raise BadInput(f"{what}={value} must be positive and finite")


def share(what: str, value: Any) -> None:
    """Raise BadInput unless the value is a number in [0, 1)."""
    if not 0 <= number(what, value) < 1:
        raise BadInput(f"{what}={value} is outside [0, 1)")


def flag(what: str, value: Any) -> None:
    """Raise BadInput unless the value is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise BadInput(f"{what}={shown(value)} must be True or False")


def one_of(what: str, value: Any, *allowed: str) -> None:
    """Raise BadInput unless the value is one of the allowed words."""
    if not isinstance(value, str) or value not in allowed:
        raise BadInput(f"{what}={shown(value)} is unknown; {choice(str(value), allowed)}")


def instance(what: str, value: Any, kind: type[T] | tuple[type[T], ...], advice: str) -> T:
    """Return an instance of `kind`; raise BadInput with `advice` otherwise."""
    if not isinstance(value, kind):
        raise BadInput(f"`{what}` is {described(value)}; {advice}")
    return value


def shown(value: object) -> str:
    """Show a value on one line, shortened if it is long."""
    return shorten(
        repr(value.item() if isinstance(value, np.generic) else value), 80, placeholder=" ..."
    )
