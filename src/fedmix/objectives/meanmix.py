"""MeanMix: mixup as its authors draw it, with received means of few samples as partners."""

from dataclasses import dataclass

from torch import Tensor

from fedmix.core.types import Batch, Params
from fedmix.models.functional import Model
from fedmix.objectives.algorithm import objective
from fedmix.objectives.base import Needs, Objective, beta, mixing, received
from fedmix.objectives.mixup import mixed_loss


@objective("meanmix", "mixup with means of five samples, λ drawn", exchange={"m": 5, "cutoff": 5})
@dataclass(frozen=True)
class MeanMix(Objective):
    """Mixup with a received mean (x̄, ȳ) for each sample, and λ drawn for each batch.

    The loss is (1−λ)·ℓ(f(x̃), y) + λ·ℓ(f(x̃), ȳ) at x̃ = (1−λ)x + λx̄, with λ from Beta(α, α);
    α = 1 draws it uniformly. It is what NaiveMix is with the same `alpha` and `per="sample"`. It
    gains where means are of few samples, which protects them little (docs/beyond.md).
    """

    alpha: float = 1.0

    def __post_init__(self) -> None:
        beta("MeanMix", self.alpha)

    @property
    def needs(self) -> Needs:
        return Needs(means="sample", alpha=self.alpha)

    def __call__(self, model: Model, params: Params, anchor: Params, batch: Batch) -> Tensor:
        return mixed_loss(model, params, batch, *received(batch), mixing(batch, None))
