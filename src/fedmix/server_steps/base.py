"""Base class of server steps: pure functions of a state, the weights and the clients' mean."""

import math
from abc import ABC, abstractmethod

from fedmix.core.errors import BadInput
from fedmix.core.types import Params
from fedmix.core.validation import number


class ServerStep(ABC):
    """Base class of server steps. Subclass it, and write `__call__` and, for a state, `init`.

    `step(state, weights, mean)` returns the next state and the next weights. `weights` are those at
    the start of the round. `mean` is the average of the clients' weights, weighted by their numbers
    of samples. A state is a dict of tensors, which checkpoints include.
    """

    def init(self, weights: Params) -> Params:  # noqa: ARG002 - subclasses use it
        """Return the state before the first round; by default none."""
        return {}

    @abstractmethod
    def __call__(self, state: Params, weights: Params, mean: Params) -> tuple[Params, Params]: ...


def positive(who: str, value: float) -> None:
    """Raise BadInput for a number that is not positive and finite; `who` names it."""
    if not 0 < number(who, value) < math.inf:
        raise BadInput(f"{who}={value} must be positive and finite")


def share(who: str, value: float) -> None:
    """Raise BadInput for a number outside [0, 1); `who` names it."""
    if not 0 <= number(who, value) < 1:
        raise BadInput(f"{who}={value} is outside [0, 1)")
