"""Balance: received means get uniform labels (after FedBR, Guo et al. 2023)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedmix.core.errors import BadInput
from fedmix.core.types import Batch, Params
from fedmix.core.validation import number, one_of
from fedmix.models.functional import Model
from fedmix.objectives.algorithm import objective as registered
from fedmix.objectives.base import MeansPer, Needs, Objective, batch_mean, received
from fedmix.objectives.naivemix import NaiveMix
from fedmix.objectives.supervised import Supervised


@dataclass(frozen=True)
class Balance(Objective):
    """The term weight · ℓ(f(x̄), uniform), so that no client's head prefers its own classes.

    It can be added to any objective. x̄ are received means, one per batch or one per sample.

    >>> from fedmix import NaiveMix
    >>> (NaiveMix(lam=0.1) + Balance(weight=0.5)).needs.means
    'batch'
    """

    weight: float = 1.0
    per: MeansPer = "batch"

    def __post_init__(self) -> None:
        if not 0 <= number("Balance: weight", self.weight) < math.inf:
            raise BadInput(f"Balance: weight={self.weight} must be 0 or more, and finite")
        one_of("Balance: per", self.per, "batch", "sample")

    @property
    def needs(self) -> Needs:
        return Needs(means=self.per)

    def __call__(self, model: Model, params: Params, anchor: Params, batch: Batch) -> Tensor:
        mean_x, mean_y = received(batch)
        uniform = torch.full_like(mean_y, 1 / mean_y.shape[-1])
        each = model.loss(model(params, mean_x, batch.key), uniform)
        mask = batch.mask if self.per == "sample" else torch.ones_like(each)
        return self.weight * batch_mean(each, mask)


@registered("balance", "plain local training, and uniform labels for means", exchange={})
def balance(
    weight: float = 1.0,
    per: MeansPer = "batch",
    lam: float | None = None,
    alpha: float | None = None,
) -> Objective:
    """Add Balance to FedAvg's objective, or with `lam` or `alpha` to NaiveMix."""
    term = Balance(weight, per)
    if lam is None and alpha is None:
        return Supervised() + term
    return NaiveMix(lam, per, alpha) + term
