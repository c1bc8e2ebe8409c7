"""NaiveMix whose own labels are learned by FedRS's restricted softmax."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedmix.core.errors import BadInput
from fedmix.core.types import Batch, Params
from fedmix.core.validation import number
from fedmix.models.functional import Model
from fedmix.objectives.algorithm import objective
from fedmix.objectives.base import Needs, batch_mean, mixing, received
from fedmix.objectives.mixup import mixed
from fedmix.objectives.naivemix import NaiveMix


@objective(
    "restrictedmix", "naivemix with a restricted softmax for own labels", exchange={}, lam=0.1
)
@dataclass(frozen=True)
class RestrictedMix(NaiveMix):
    """NaiveMix with FedRS's rule in the part that learns own labels.

    The loss is (1−λ)·ℓ(a·f(x̃), y) + λ·ℓ(f(x̃), ȳ) at x̃ = (1−λ)x + λx̄, where a is 1 for the client's
    classes and `scale` for others. Received labels hold these other classes, so that their part has
    the whole softmax.
    """

    scale: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= number("RestrictedMix: scale", self.scale) <= 1:
            raise BadInput(f"RestrictedMix: scale={self.scale} is outside [0, 1]")

    @property
    def needs(self) -> Needs:
        return replace(super().needs, counts=True)

    def __call__(self, model: Model, params: Params, anchor: Params, batch: Batch) -> Tensor:
        assert batch.counts is not None
        lam, (mean_x, mean_y) = mixing(batch, self.lam), received(batch)
        logits = model(params, mixed(batch.x, mean_x, lam), batch.key)
        own = model.loss(logits * torch.where(batch.counts > 0, 1.0, self.scale), batch.y)
        return batch_mean((1 - lam) * own + lam * model.loss(logits, mean_y), batch.mask)
