"""NaiveMix: mixup with a received mean as if it were a sample (the paper's equation 2)."""

from dataclasses import dataclass

from torch import Tensor

from fedmix.core.types import Batch, Params
from fedmix.core.validation import one_of
from fedmix.models.functional import Model
from fedmix.objectives.base import MeansPer, Needs, Objective, ratio, received
from fedmix.objectives.mixup import mixed_loss


@dataclass(frozen=True)
class NaiveMix(Objective):
    """(1−λ)·ℓ(f((1−λ)x + λx̄), y) + λ·ℓ(f((1−λ)x + λx̄), ȳ), one mean (x̄, ȳ) per batch or per
    sample.
    """

    lam: float
    per: MeansPer = "batch"

    def __post_init__(self) -> None:
        ratio("NaiveMix", self.lam)
        one_of("NaiveMix: per", self.per, "batch", "sample")

    @property
    def needs(self) -> Needs:
        return Needs(means=self.per)

    def __call__(self, model: Model, params: Params, anchor: Params, batch: Batch) -> Tensor:
        return mixed_loss(model, params, batch, *received(batch), self.lam)
