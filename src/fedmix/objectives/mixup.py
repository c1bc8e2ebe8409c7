"""Mixup (Zhang et al. 2018) of raw samples.

LocalMix mixes samples of one client, GlobalMix those of all clients.
"""

from dataclasses import dataclass

from torch import Tensor

from fedmix.core.errors import BadInput
from fedmix.core.losses import PerSample
from fedmix.core.types import Batch, Params
from fedmix.models.functional import Model
from fedmix.objectives.algorithm import objective
from fedmix.objectives.base import Needs, Objective, batch_mean, beta, ratio


def mixed_loss(
    model: Model,
    params: Params,
    batch: Batch,
    other_x: Tensor,
    other_y: Tensor,
    lam: Tensor | float,
) -> Tensor:
    """Return the mean of (1−λ)·ℓ(f(x̃), y) + λ·ℓ(f(x̃), y') at x̃ = (1−λ)x + λx'.

    Args:
        model: The model f with its loss ℓ.
        params: The client's weights.
        batch: The samples (x, y).
        other_x: The inputs x' to mix with.
        other_y: Their targets y'.
        lam: The mixing ratio λ.
    """
    outputs = model(params, mixed(batch.x, other_x, lam), batch.key)
    return batch_mean(loss_at_mix(model.loss, outputs, batch.y, other_y, lam), batch.mask)


def mixed(x: Tensor, other: Tensor, lam: Tensor | float) -> Tensor:
    """Return (1−λ)x + λx'."""
    return (1 - lam) * x + lam * other


def loss_at_mix(
    loss: PerSample, outputs: Tensor, y: Tensor, other_y: Tensor, lam: Tensor | float
) -> Tensor:
    """Return (1−λ)·ℓ(z, y) + λ·ℓ(z, y') of each sample, for the outputs z at mixed inputs."""
    own, other = loss(outputs, y), loss(outputs, other_y)
    return (1 - lam) * own + lam * other


@dataclass(frozen=True)
class _RawMix(Objective):
    alpha: float | None = None
    lam: float | None = None

    def __post_init__(self) -> None:
        name = type(self).__name__
        if (self.alpha is None) == (self.lam is None):
            both = (
                "; objective.alpha=none (alpha=None in Python) takes the drawn one away"
                if self.lam is not None
                else ""
            )
            raise BadInput(
                f"{name}: give either alpha (λ drawn from Beta(alpha, alpha) per batch) or a fixed "
                f"lam{both}"
            )
        if self.alpha is not None:
            beta(name, self.alpha)
        if self.lam is not None:
            ratio(name, self.lam)

    def __call__(self, model: Model, params: Params, anchor: Params, batch: Batch) -> Tensor:
        lam = batch.lam if self.lam is None else self.lam
        if batch.partner_x is None or batch.partner_y is None or lam is None:
            raise BadInput(f"{type(self).__name__}: this batch carries no partners to mix with")
        return mixed_loss(model, params, batch, batch.partner_x, batch.partner_y, lam)


@objective("localmix", "mixup inside a client", alpha=1.0)
@dataclass(frozen=True)
class LocalMix(_RawMix):
    """Mixup of a client's samples with random samples of its own.

    `alpha` has λ drawn from Beta(α, α) for each batch, instead of a fixed `lam`.
    """

    @property
    def needs(self) -> Needs:
        return Needs(partner="local", alpha=self.alpha)


@objective("globalmix", "mixup with everyone's raw samples, an upper bound", alpha=1.0)
@dataclass(frozen=True)
class GlobalMix(_RawMix):
    """Mixup with random raw samples of all clients, which FedMix approximates.

    It breaks privacy and serves as an upper bound. `alpha` has λ drawn from Beta(α, α) for each
    batch, instead of a fixed `lam`.
    """

    @property
    def needs(self) -> Needs:
        return Needs(partner="global", alpha=self.alpha)
