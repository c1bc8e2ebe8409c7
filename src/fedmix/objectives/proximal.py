"""FedProx's proximal term (Li et al. 2020), which can be added to any objective."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedmix.core.errors import BadInput
from fedmix.core.types import Batch, Params
from fedmix.core.validation import number
from fedmix.models.functional import Model
from fedmix.objectives.base import Objective


@dataclass(frozen=True)
class Proximal(Objective):
    """The term μ/2 · ‖w − w_anchor‖², which keeps clients near the weights at the round's start.

    >>> from fedmix import FedMix
    >>> (FedMix(lam=0.05) + Proximal(mu=0.1)).second
    Proximal(mu=0.1)
    """

    mu: float

    def __post_init__(self) -> None:
        if not 0 <= number("Proximal: mu", self.mu) < math.inf:
            wrong = "negative" if self.mu < 0 else "no finite number"
            raise BadInput(f"Proximal: mu={self.mu} is {wrong}; use 0 or more")

    def __call__(self, model: Model, params: Params, anchor: Params, batch: Batch) -> Tensor:
        return self.term(params, anchor)

    def term(self, params: Params, anchor: Params) -> Tensor:
        """Return μ/2 · Σ (w − w_anchor)² over all of `params`."""
        moved = [(params[name] - anchor[name]).square().sum() for name in params]
        return self.mu / 2 * torch.stack(moved).sum()
