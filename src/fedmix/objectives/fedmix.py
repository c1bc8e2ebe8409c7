"""FedMix: global mixup by a first-order expansion that needs only means.

See the paper's Proposition 1 and Algorithm 2.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from torch.func import jvp

from fedmix.core.errors import BadInput
from fedmix.core.losses import PerSample
from fedmix.core.types import Batch, Params
from fedmix.core.validation import number, one_of
from fedmix.models.functional import Model
from fedmix.objectives.algorithm import Algorithm, algorithm, objective
from fedmix.objectives.base import MeansPer, Needs, Objective, batch_mean, ratio, received


@objective("fedmix", "global mixup from means, by a Taylor expansion", exchange={})
@dataclass(frozen=True)
class FedMix(Objective):
    """Global mixup with received means (x̄, ȳ), by a first-order expansion of the loss.

    The loss is ℓ1 + ℓ2 + ℓ3 = (1−λ)·ℓ(f(x'), y) + λ·ℓ(f(x'), ȳ) + λ·∂ℓ(f(x'), y)/∂x · x̄, at x' =
    (1−λ)x. ℓ3 is the mean over samples of each sample's directional derivative along x̄, computed
    in forward mode.

    `scale="algorithm"` uses λ·∂ℓ1/∂x, as Algorithm 2 states it, which is (1−λ) times Proposition
    1's. `expand="logits"` expands the logits instead, z = f(x') + λ·∂f/∂x·x̄, and keeps the loss
    exact, (1−λ)·ℓ(z, y) + λ·ℓ(z, ȳ): the same to O(λ²), but bounded below. `third` multiplies the
    derivative, to measure its effect: 0 leaves it out, and 1/B is its size if it is averaged over
    the batch twice.

    Raises:
        BadInput: A setting is outside its range, or `scale="algorithm"` is given with
            `expand="logits"`.
    """

    lam: float
    scale: Literal["proposition", "algorithm"] = "proposition"
    expand: Literal["loss", "logits"] = "loss"
    per: MeansPer = "batch"
    third: float = 1.0

    def __post_init__(self) -> None:
        ratio("FedMix", self.lam)
        one_of("FedMix: scale", self.scale, "proposition", "algorithm")
        one_of("FedMix: expand", self.expand, "loss", "logits")
        one_of("FedMix: per", self.per, "batch", "sample")
        if not 0 <= number("FedMix: third", self.third) < float("inf"):
            raise BadInput(f"FedMix: third={self.third} multiplies ℓ3; it must be 0 or more")
        if self.scale == "algorithm" and self.expand == "logits":
            raise BadInput(
                "FedMix: scale='algorithm' speaks of the loss expansion; with expand='logits' "
                "leave scale out"
            )

    @property
    def needs(self) -> Needs:
        return Needs(means=self.per)

    def __call__(self, model: Model, params: Params, anchor: Params, batch: Batch) -> Tensor:
        mean_x, mean_y = received(batch)
        logits, tangent = model.along(params, (1 - self.lam) * batch.x, mean_x, batch.key)
        return batch_mean(self.expanded(model.loss, logits, tangent, batch.y, mean_y), batch.mask)

    def expanded(
        self, loss: PerSample, logits: Tensor, tangent: Tensor, y: Tensor, mean_y: Tensor
    ) -> Tensor:
        """Return each sample's loss, (B,).

        Args:
            loss: ℓ(outputs, targets), one value per sample.
            logits: f(x') at x' = (1−λ)x.
            tangent: ∂f(x')/∂x · x̄, of the same shape.
            y: The samples' targets.
            mean_y: The received ȳ, for each sample or for all.
        """
        lam = self.lam
        if self.expand == "logits":
            z = logits + self.third * lam * tangent
            return (1 - lam) * loss(z, y) + lam * loss(z, mean_y)
        own, slope = jvp(lambda z: loss(z, y), (logits,), (tangent,))[:2]
        weight = self.third * (lam if self.scale == "proposition" else lam * (1 - lam))
        expanded: Tensor = (1 - lam) * own + lam * loss(logits, mean_y) + weight * slope
        return expanded


algorithm(
    "fedmix-logits",
    "FedMix that expands the logits, which trains wherever it was run",
    Algorithm("fedmix", {"expand": "logits"}, {}),
)
