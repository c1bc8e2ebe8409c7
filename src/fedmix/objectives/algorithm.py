"""Algorithms by name: an objective with some of its settings, and what it exchanges."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fedmix.core.registry import ALGORITHMS, OBJECTIVES

T = TypeVar("T", bound=Callable[..., Any])


@dataclass(frozen=True)
class Algorithm:
    """What `--algorithm NAME` stands for.

    Args:
        objective: the name of its objective.
        settings: of its [objective]; a preset's λ stands for what is not set here.
        exchange: its [exchange], None where it uses no means.
        prox: whether it has FedProx's term, with the preset's μ.
    """

    objective: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    exchange: Mapping[str, Any] | None = None
    prox: bool = False


def algorithm(name: str, about: str, what: Algorithm) -> None:
    """Make an algorithm known under a name."""

    def make() -> Algorithm:
        return what

    make.__qualname__ = name
    ALGORITHMS.add(name, about)(make)


def objective(
    name: str, about: str = "", *, exchange: Mapping[str, Any] | None = None, **settings: Any
) -> Callable[[T], T]:
    """A decorator that registers an objective, and the algorithm of the same name.

    Args:
        name: the name in specs and on the command line.
        about: a sentence about it; by default the first line of its docstring.
        exchange: settings of the algorithm's exchange, {} for the usual ones; None: no means.
        settings: of the objective in that algorithm.
    """

    def registered(make: T) -> T:
        OBJECTIVES.add(name, about)(make)
        said = OBJECTIVES.entry_now(name).about
        algorithm(name, said, Algorithm(name, settings, exchange))
        return make

    return registered
