"""FedRS (Li, Zhan 2021): a restricted softmax for classes that a client does not have."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedmix.core.errors import BadInput
from fedmix.core.types import Batch, Params
from fedmix.core.validation import number
from fedmix.models.functional import Model
from fedmix.objectives.algorithm import objective
from fedmix.objectives.base import Needs, Objective, batch_mean


@objective("fedrs", "a restricted softmax for classes that a client lacks")
@dataclass(frozen=True)
class FedRS(Objective):
    """Loss with scaled logits, ℓ(a·z, y), where a is 1 for the client's classes and α for others.

    `alpha` is that factor; with 1 the loss is FedAvg's.
    """

    alpha: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= number("FedRS: alpha", self.alpha) <= 1:
            raise BadInput(f"FedRS: alpha={self.alpha} is outside [0, 1]")

    @property
    def needs(self) -> Needs:
        return Needs(counts=True)

    def __call__(self, model: Model, params: Params, anchor: Params, batch: Batch) -> Tensor:
        assert batch.counts is not None
        logits = model(params, batch.x, batch.key) * torch.where(batch.counts > 0, 1.0, self.alpha)
        return batch_mean(model.loss(logits, batch.y), batch.mask)
