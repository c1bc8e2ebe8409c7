"""NaiveMix: mixup with a received mean in the place of a sample (the paper's equation 2)."""

from dataclasses import dataclass

from torch import Tensor

from fedmix.core.types import Batch, Params
from fedmix.core.validation import one_of
from fedmix.models.functional import Model
from fedmix.objectives.algorithm import Algorithm, algorithm, objective
from fedmix.objectives.base import MeansPer, Needs, Objective, ratio, received
from fedmix.objectives.mixup import mixed_loss


@objective("naivemix", "mixup with means as if they were samples", exchange={})
@dataclass(frozen=True)
class NaiveMix(Objective):
    """Mixup with received means (x̄, ȳ) as if they were samples, one per batch or per sample.

    The loss is (1−λ)·ℓ(f(x̃), y) + λ·ℓ(f(x̃), ȳ) at x̃ = (1−λ)x + λx̄.
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


algorithm(
    "randommix",
    "NaiveMix with noise in the place of means, a control",
    Algorithm("naivemix", exchange={"source": "noise"}),
)
algorithm(
    "localmeans",
    "NaiveMix with the client's own means, a control",
    Algorithm("naivemix", exchange={"source": "own"}),
)
