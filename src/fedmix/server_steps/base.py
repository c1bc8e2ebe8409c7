"""What a server step is: a pure function of its state, the weights and the clients' average."""

import math
from abc import ABC, abstractmethod

from fedmix.core.errors import BadInput
from fedmix.core.types import Params
from fedmix.core.validation import number


class ServerStep(ABC):
    """Base of all server steps. Subclass it, write `__call__`, and `init` if it has a state.

    `step(state, weights, mean)` gives the next state and the next weights. `weights` are those that
    the round began with and `mean` is the clients' average of theirs, weighted by their numbers of
    samples. A state is tensors by name; the run's checkpoint holds it.
    """

    def init(self, weights: Params) -> Params:  # noqa: ARG002 - for those that have a state
        """The state before the first round."""
        return {}

    @abstractmethod
    def __call__(self, state: Params, weights: Params, mean: Params) -> tuple[Params, Params]: ...


def positive(who: str, value: float) -> None:
    """Refuse a number that is not positive and finite."""
    if not 0 < number(who, value) < math.inf:
        raise BadInput(f"{who}={value} must be positive and finite")


def share(who: str, value: float) -> None:
    """Refuse a number outside [0, 1)."""
    if not 0 <= number(who, value) < 1:
        raise BadInput(f"{who}={value} is outside [0, 1)")
