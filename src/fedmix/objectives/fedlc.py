"""FedLC (Zhang et al. 2022): logits calibrated by the client's label counts."""

from dataclasses import dataclass

from torch import Tensor

from fedmix.core.errors import BadInput
from fedmix.core.types import Batch, Params
from fedmix.core.validation import number
from fedmix.models.functional import Model
from fedmix.objectives.algorithm import objective
from fedmix.objectives.base import Needs, Objective, batch_mean

ABSENT = 1e-8  # replaces a count of 0, so that the softmax nearly leaves the class out


@objective("fedlc", "logits calibrated by the client's label counts")
@dataclass(frozen=True)
class FedLC(Objective):
    """Loss with calibrated logits, ℓ(z − τ·n^(−1/4), y), so that rare classes get a margin.

    z are the logits, and n are the client's label counts. `tau` scales the margins; with 0 the loss
    is FedAvg's.

    The softmax is over all classes, as in public code. The paper's sum leaves out the sample's own
    class, and then the loss has no lower bound.
    """

    tau: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= number("FedLC: tau", self.tau) < float("inf"):
            raise BadInput(f"FedLC: tau={self.tau} must be 0 or more, and finite")

    @property
    def needs(self) -> Needs:
        return Needs(counts=True)

    def __call__(self, model: Model, params: Params, anchor: Params, batch: Batch) -> Tensor:
        assert batch.counts is not None
        margin = self.tau * batch.counts.clamp(min=ABSENT) ** -0.25
        logits = model(params, batch.x, batch.key) - margin
        return batch_mean(model.loss(logits, batch.y), batch.mask)
