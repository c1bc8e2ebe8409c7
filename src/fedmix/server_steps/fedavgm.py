"""FedAvgM (Hsu et al. 2019): the server moves towards the clients' average with momentum."""

from dataclasses import dataclass

import torch

from fedmix.core.registry import SERVER_STEPS
from fedmix.core.types import Params
from fedmix.core.validation import positive, share
from fedmix.server_steps.base import ServerStep


@SERVER_STEPS.add("fedavgm", "momentum on the server")
@dataclass(frozen=True)
class FedAvgM(ServerStep):
    """Momentum on the server: v ← momentum·v + (Σ p_k w_k − w),  w ← w + lr·v.

    `lr` is the server's learning rate. `momentum` is that of the server.

    Raises:
        BadInput: `lr` is not positive and finite, or `momentum` is outside [0, 1).
    """

    lr: float = 1.0
    momentum: float = 0.9

    def __post_init__(self) -> None:
        positive("FedAvgM: lr", self.lr)
        share("FedAvgM: momentum", self.momentum)

    def init(self, weights: Params) -> Params:
        return {name: torch.zeros_like(w) for name, w in weights.items()}

    def __call__(self, state: Params, weights: Params, mean: Params) -> tuple[Params, Params]:
        v = {name: self.momentum * state[name] + mean[name] - w for name, w in weights.items()}
        return v, {name: w + self.lr * v[name] for name, w in weights.items()}
