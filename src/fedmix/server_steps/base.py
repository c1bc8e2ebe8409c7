"""Base class of server steps: pure functions of a state, the weights and the clients' mean."""

from abc import ABC, abstractmethod

from fedmix.core.types import Params


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
