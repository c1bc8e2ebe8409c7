"""NaiveMix: mixup with a received mean in the place of a sample (the paper's equation 2)."""

from dataclasses import dataclass

from torch import Tensor

from fedmix.core.types import Batch, Params
from fedmix.core.validation import one_of
from fedmix.models.functional import Model
from fedmix.objectives.algorithm import Algorithm, algorithm, objective
from fedmix.objectives.base import (
    MeansPer,
    Needs,
    Objective,
    mixing,
    ratio_or_beta,
    ratio_per,
    received,
)
from fedmix.objectives.mixup import mixed_loss


@objective("naivemix", "mixup with means as if they were samples", exchange={})
@dataclass(frozen=True)
class NaiveMix(Objective):
    """Mixup with received means (x̄, ȳ) as if they were samples, one per batch or per sample.

    The loss is (1−λ)·ℓ(f(x̃), y) + λ·ℓ(f(x̃), ȳ) at x̃ = (1−λ)x + λx̄. `alpha` has λ drawn from
    Beta(α, α), instead of a fixed `lam`: for each batch, or with `lam_per="sample"` for each
    sample.
    """

    lam: float | None = None
    per: MeansPer = "batch"
    alpha: float | None = None
    lam_per: MeansPer = "batch"

    def __post_init__(self) -> None:
        name = type(self).__name__
        ratio_or_beta(name, self.lam, self.alpha)
        one_of(f"{name}: per", self.per, "batch", "sample")
        ratio_per(name, self.alpha, self.lam_per)

    @property
    def needs(self) -> Needs:
        return Needs(means=self.per, alpha=self.alpha, each=self.lam_per == "sample")

    def __call__(self, model: Model, params: Params, anchor: Params, batch: Batch) -> Tensor:
        return mixed_loss(model, params, batch, *received(batch), mixing(batch, self.lam))


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
