"""FedAvg (McMahan et al. 2017): the clients' average becomes the new weights."""

from dataclasses import dataclass

from fedmix.core.registry import SERVER_STEPS
from fedmix.core.types import Params
from fedmix.server_steps.base import ServerStep


@SERVER_STEPS.add("fedavg", "the clients' average takes the place of the weights")
@dataclass(frozen=True)
class FedAvg(ServerStep):
    """The clients' average becomes the new weights: w ← Σ p_k w_k."""

    def __call__(self, state: Params, weights: Params, mean: Params) -> tuple[Params, Params]:  # noqa: ARG002
        return state, mean
