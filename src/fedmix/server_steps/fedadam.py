"""FedAdam (Reddi et al. 2021, Algorithm 2): Adam on the server, with Δ = Σ p_k w_k − w."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedmix.core.registry import SERVER_STEPS
from fedmix.core.types import Params
from fedmix.core.validation import positive, share
from fedmix.server_steps.base import ServerStep


@SERVER_STEPS.add("fedadam", "Adam on the server")
@dataclass(frozen=True)
class FedAdam(ServerStep):
    """Adam on the server, where Δ is the clients' average minus the weights.

    m ← β1·m + (1−β1)·Δ, v ← β2·v + (1−β2)·Δ², w ← w + lr·m / (√v + τ), starting from v = τ².

    `lr` is the server's learning rate. `beta1` is the decay of the first moment. `beta2` is the
    decay of the second moment. `tau` is added to √v: smaller values adapt more.

    Raises:
        BadInput: `lr` or `tau` is not positive and finite, or a decay is outside [0, 1).
    """

    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        for name, check in (
            ("lr", positive),
            ("tau", positive),
            ("beta1", share),
            ("beta2", share),
        ):
            check(f"{type(self).__name__}: {name}", getattr(self, name))

    def init(self, weights: Params) -> Params:
        m = {f"m.{name}": torch.zeros_like(w) for name, w in weights.items()}
        return m | {f"v.{name}": torch.full_like(w, self.tau**2) for name, w in weights.items()}

    def second(self, v: Tensor, squared: Tensor) -> Tensor:
        """Return the next v from v and Δ²."""
        return self.beta2 * v + (1 - self.beta2) * squared

    def __call__(self, state: Params, weights: Params, mean: Params) -> tuple[Params, Params]:
        new, moved = {}, {}
        for name, w in weights.items():
            delta = mean[name] - w
            m = new[f"m.{name}"] = self.beta1 * state[f"m.{name}"] + (1 - self.beta1) * delta
            v = new[f"v.{name}"] = self.second(state[f"v.{name}"], delta * delta)
            moved[name] = w + self.lr * m / (v.sqrt() + self.tau)
        return new, moved
