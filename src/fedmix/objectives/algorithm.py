"""Algorithms by name: an objective with settings, and the exchange that it uses."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fedmix.core.registry import ALGORITHMS, OBJECTIVES

T = TypeVar("T", bound=Callable[..., Any])


@dataclass(frozen=True)
class Algorithm:
    """What `--algorithm NAME` stands for.

    Args:
        objective: The name of its objective.
        settings: Its [objective] settings. A preset's λ is used where they do not set one.
        exchange: Its [exchange] settings; None if it uses no means.
        prox: Whether it has FedProx's term, with the preset's μ.
    """

    objective: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    exchange: Mapping[str, Any] | None = None
    prox: bool = False


def algorithm(name: str, about: str, what: Algorithm) -> None:
    """Register an algorithm.

    Args:
        name: The name on the command line.
        about: A sentence about it.
        what: The algorithm.

    Raises:
        BadInput: Another algorithm has this name.
    """

    def make() -> Algorithm:
        return what

    make.__qualname__ = name
    ALGORITHMS.add(name, about)(make)


def objective(
    name: str, about: str = "", *, exchange: Mapping[str, Any] | None = None, **settings: Any
) -> Callable[[T], T]:
    """Decorate an objective to register it, and the algorithm of the same name.

    Args:
        name: The name in specs and on the command line.
        about: A sentence about it; by default the first line of its docstring.
        exchange: The algorithm's [exchange] settings; {} for the defaults, None if it uses no
            means.
        settings: The algorithm's [objective] settings.

    Returns:
        A decorator that returns what it is given.

    Raises:
        BadInput: Another objective or algorithm has this name.
    """

    def registered(make: T) -> T:
        OBJECTIVES.add(name, about)(make)
        said = OBJECTIVES.entry_now(name).about
        algorithm(name, said, Algorithm(name, settings, exchange))
        return make

    return registered
