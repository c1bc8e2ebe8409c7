"""What an objective is: a pure function of (model, params, anchor, batch), and what it asks of the
plan.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal

from torch import Tensor

from fedmix.core.errors import BadInput
from fedmix.core.types import Batch, Params
from fedmix.core.validation import flag, instance, number, one_of, whole
from fedmix.models.functional import Model

MeansPer = Literal["batch", "sample"]


class ClientState(ABC):
    """What clients keep between rounds, and what the server sends them along with the weights.

    Both are tensors by name, and both change by pure functions. Only clients that take part keep
    anything, so memory grows with these and not with all clients.
    """

    @abstractmethod
    def first(self, params: Params) -> tuple[Params, Params]:
        """What a client keeps before its first round, and what the server shares before the first.

        Args:
            params: the model's weights, of which the shapes matter.
        """

    @abstractmethod
    def after(
        self, kept: Params, shared: Params, anchor: Params, params: Params, moved: Tensor | float
    ) -> tuple[Params, Params]:
        """What a client keeps after its local update, and what it sends.

        The server adds the sum of what clients sent, over the number of all clients, to `shared`.

        Args:
            kept: what the client kept until now.
            shared: what the server sent.
            anchor: the weights that the round began with.
            params: the weights after the client's local steps.
            moved: the sum of the factors with which its gradients entered these weights: the
                learning rate times the number of steps, and more with momentum.
        """


@dataclass(frozen=True)
class Needs:
    """What a batch must hold beside samples.

    Args:
        means: received means, one per "batch" or one per "sample".
        partner: samples to mix with, "local" or "global" ones.
        alpha: a ratio drawn from Beta(alpha, alpha) for each batch.
        layer: where means are taken: 0 for inputs, k for hidden states after k layers.
        counts: how many samples of each class the client has.
        samples: how many samples the client has.
        state: what clients keep between rounds.
    """

    means: MeansPer | None = None
    partner: Literal["local", "global"] | None = None
    alpha: float | None = None
    layer: int = 0
    counts: bool = False
    samples: bool = False
    state: ClientState | None = None

    def __post_init__(self) -> None:
        if self.means is not None:
            one_of("Needs: means", self.means, "batch", "sample")
        if self.partner is not None:
            one_of("Needs: partner", self.partner, "local", "global")
        if self.alpha is not None:
            beta("Needs", self.alpha)
        whole("Needs: layer", self.layer, 0)
        flag("Needs: counts", self.counts)
        flag("Needs: samples", self.samples)
        if self.state is not None:
            instance("Needs: state", self.state, ClientState, "give a ClientState, or None")

    @property
    def mixes(self) -> bool:
        return self.means is not None or self.partner is not None

    def __or__(self, other: "Needs") -> "Needs":
        merged: dict[str, Any] = {}
        for field in fields(self):
            a, b = getattr(self, field.name), getattr(other, field.name)
            if a and b and a != b:
                raise BadInput(
                    f"these objectives cannot be added: one needs {field.name}={a!r}, the other "
                    f"{b!r}"
                )
            merged[field.name] = a or b
        if self.mixes and other.mixes and self.layer != other.layer:
            raise BadInput(
                f"these objectives cannot be added: one mixes at layer {self.layer}, the other at "
                f"{other.layer}"
            )
        return Needs(**merged)


class Objective(ABC):
    """Base of all objectives.

    Subclass it, write `__call__`, and state `needs` if it uses more of the batch than x and y.

    `objective(model, params, anchor, batch)` is the scalar that one local step descends: `params`
    are the client's weights, `anchor` those the round began with. It draws nothing, stores nothing
    and does not know which engine calls it.
    """

    @property
    def needs(self) -> Needs:
        return Needs()

    @abstractmethod
    def __call__(self, model: Model, params: Params, anchor: Params, batch: Batch) -> Tensor: ...

    def phases(self) -> tuple["Phase", ...]:
        """The gradient steps that one batch is used for, in order."""
        return (Phase(self),)

    def __add__(self, other: "Objective") -> "Objective":
        return Sum(self, other)


@dataclass(frozen=True)
class Phase:
    """One gradient step: descend `objective` in the parameters of all layers from `layer` on."""

    objective: Objective
    layer: int = 0


@dataclass(frozen=True)
class Sum(Objective):
    """Two objectives added. A term of one phase joins every phase of the other."""

    first: Objective
    second: Objective

    def __post_init__(self) -> None:
        for name, term in vars(self).items():
            instance(
                name, term, Objective, "add Objectives, such as FedMix(lam=0.1) + Proximal(mu=0.1)"
            )
        if len(self.first.phases()) > 1 and len(self.second.phases()) > 1:
            raise BadInput(
                "two objectives of several phases each cannot be added; use one Hidden(...)"
            )
        _ = self.needs

    @property
    def needs(self) -> Needs:
        return self.first.needs | self.second.needs

    def __call__(self, model: Model, params: Params, anchor: Params, batch: Batch) -> Tensor:
        return self.first(model, params, anchor, batch) + self.second(model, params, anchor, batch)

    def phases(self) -> tuple[Phase, ...]:
        first, second = self.first.phases(), self.second.phases()
        if len(first) == len(second) == 1:
            return (Phase(self, max(first[0].layer, second[0].layer)),)
        if len(first) > 1:
            return tuple(Phase(Sum(p.objective, self.second), p.layer) for p in first)
        return tuple(Phase(Sum(self.first, p.objective), p.layer) for p in second)


def parts(objective: Objective) -> Iterator[Objective]:
    """The objective and all that it is made of."""
    yield objective
    for part in vars(objective).values():
        if isinstance(part, Objective):
            yield from parts(part)


def batch_mean(per_sample: Tensor, mask: Tensor) -> Tensor:
    """The mean over the samples of a batch, padding left out."""
    return (per_sample * mask).sum() / mask.sum().clamp(min=1)


def ratio(who: str, lam: float) -> None:
    """Refuse a mixing ratio that is none."""
    if not 0 <= number(f"{who}: lam", lam) <= 1:
        raise BadInput(
            f"{who}: lam={lam} is outside [0, 1]; small values such as 0.05 to 0.2 are usual"
        )


def beta(who: str, alpha: float) -> None:
    """Refuse what is no parameter of a Beta distribution."""
    if not 0 < number(f"{who}: alpha", alpha) < math.inf:
        raise BadInput(f"{who}: alpha={alpha} must be positive; 1 draws λ uniformly")


def received(batch: Batch) -> tuple[Tensor, Tensor]:
    """The means that came with a batch."""
    if batch.mean_x is None or batch.mean_y is None:
        raise BadInput("this batch carries no received means; run a mean exchange first")
    return batch.mean_x, batch.mean_y
