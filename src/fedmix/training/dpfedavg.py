"""DP-FedAvg (McMahan et al. 2018): clipped updates, their noised sum, and a fixed denominator."""

import math
from collections.abc import Collection
from dataclasses import dataclass

import torch

from fedmix.core.errors import BadInput
from fedmix.core.rng import Noise
from fedmix.core.types import Params
from fedmix.core.validation import number, positive

WITHIN = 1 - 2**-22  # so that rounding to float32 leaves a clipped update within its bound
MOST_NOISE = 1e30


@dataclass(frozen=True)
class DPFedAvg:
    """DP-FedAvg's average: w + (Σ clip(w_k − w) + z·C·ξ) / K with ξ ~ N(0, 1) for every weight.

    `clip` is C, the bound on the L2 norm of a client's update, over all layers together.
    `noise_multiplier` is z: the noise on the sum of updates has deviation z·C, and 0 adds none. K
    is the number of clients that are chosen, whatever number replies, and every client counts the
    same. The server step gets this average in the place of the one that is weighted by samples.

    Raises:
        BadInput: `clip` is not positive and finite, or `noise_multiplier` is negative or too large.
    """

    clip: float
    noise_multiplier: float = 0.0

    def __post_init__(self) -> None:
        positive("updates.clip", self.clip)
        if not 0 <= number("updates.noise_multiplier", self.noise_multiplier) <= MOST_NOISE:
            raise BadInput(
                f"updates.noise_multiplier={self.noise_multiplier} must lie between 0 and "
                f"{MOST_NOISE:g}"
            )

    def clipped(self, stacked: Params, weights: Params) -> Params:
        """Return the updates w_k − w of clients, each scaled down to a norm of C if it is longer.

        Args:
            stacked: The clients' weights after training, stacked.
            weights: The weights w before.

        >>> import torch
        >>> two = {"w": torch.tensor([[4.0, 5.0], [1.0, 1.5]])}
        >>> DPFedAvg(clip=1.0).clipped(two, {"w": torch.ones(2)})
        {'w': tensor([[0.6000, 0.8000],
                [0.0000, 0.5000]])}
        """
        moved = {name: t.double() - weights[name].double() for name, t in stacked.items()}
        squares = [t.reshape(len(t), -1).square().sum(1) for t in moved.values()]
        norms = torch.stack(squares).sum(0).sqrt()
        scale = torch.where(norms > self.clip * WITHIN, self.clip * WITHIN / norms, 1.0)
        return {
            name: (t * scale.view(-1, *[1] * (t.ndim - 1))).float() for name, t in moved.items()
        }

    def mean(
        self,
        total: Params,
        weights: Params,
        trained: Collection[str],
        clients: int,
        noise: Noise,
    ) -> Params:
        """Return the weights w + (Σ + z·C·ξ) / K.

        Args:
            total: Σ, the sum of the clipped updates.
            weights: The weights w at the start of the round.
            trained: Names of the weights that clients train; the others get no noise.
            clients: K.
            noise: Draws ξ, in the order of `weights`.
        """
        deviation, new = self.noise_multiplier * self.clip, {}
        for name, w in weights.items():
            moved = total[name]
            if deviation and name in trained:
                drawn = noise.standard_normal(math.prod(w.shape)).reshape(w.shape)
                moved = moved + deviation * torch.from_numpy(drawn).to(moved)
            new[name] = (w.double() + moved / clients).to(w.dtype)
        return new
