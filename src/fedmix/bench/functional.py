"""The plain loop with the losses of `fedmix.functional`, as in loops of one's own."""

from torch import Tensor

from fedmix.bench.plain import LoopLoss, given
from fedmix.core.errors import BadInput
from fedmix.functional import fedmix_loss, naivemix_loss
from fedmix.objectives import FedMix, NaiveMix, Objective
from fedmix.training.batches import Received

KNOWN = ("naivemix", "fedmix", "fedmix-logits")


def functional_loss(objective: Objective) -> LoopLoss:
    """The objective as one line of a loop; BadInput if `fedmix.functional` does not have it."""
    match objective:
        case NaiveMix(lam=lam, per="batch"):
            return lambda net, x, y, mean: naivemix_loss(net, x, y, *_one(mean), lam)
        case FedMix(lam=lam, scale=scale, expand=expand, per="batch", third=1.0):
            return lambda net, x, y, mean: fedmix_loss(
                net, x, y, *_one(mean), lam, scale=scale, expand=expand
            )
    raise BadInput(f"fedmix.functional knows {', '.join(KNOWN)}; measure others without it")


def _one(mean: Received | None) -> tuple[Tensor, Tensor]:
    received = given(mean)
    return received.x[None], received.y[None]
