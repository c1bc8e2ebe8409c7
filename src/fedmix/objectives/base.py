"""Base classes of objectives.

An objective is a pure function of (model, params, anchor, batch). It also states what a batch must
hold for it.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from inspect import isclass, signature
from typing import Any, Literal

from torch import Tensor, nn

from fedmix.core.errors import BadInput, described
from fedmix.core.types import Batch, Params
from fedmix.core.validation import flag, instance, number, one_of, whole
from fedmix.models.functional import Model

MeansPer = Literal["batch", "sample"]


class ClientState(ABC):
    """State that clients keep between rounds, and state that the server sends with the weights.

    Both are tensors by name, and pure functions compute both. Only clients that have taken part
    keep a state, so memory grows with their number and not with that of all clients.
    """

    @abstractmethod
    def first(self, params: Params) -> tuple[Params, Params]:
        """Return the initial state of a client, and the initial state of the server.

        Args:
            params: The model's weights; only their shapes matter.
        """

    @abstractmethod
    def after(
        self, kept: Params, shared: Params, anchor: Params, params: Params, moved: Tensor | float
    ) -> tuple[Params, Params]:
        """Return what a client keeps after its local update, and what it sends.

        The server sums what clients sent, divides by the number of all clients, and adds that to
        `shared`.

        Args:
            kept: What the client has kept until now.
            shared: What the server sent.
            anchor: The weights at the start of the round.
            params: The weights after the client's local steps.
            moved: The sum of the factors with which its gradients entered these weights: the
                learning rate times the number of steps, and more with momentum.
        """


@dataclass(frozen=True)
class Needs:
    """What a batch must hold besides samples.

    Two of them are merged with `|`.

    Args:
        means: Received means: one per "batch" or one per "sample".
        partner: Samples to mix with: "local" or "global" ones.
        alpha: Draw a ratio from Beta(alpha, alpha) for each batch.
        each: Draw one for each sample instead.
        layer: Where means are taken: 0 for inputs, k for hidden states after k layers.
        counts: The client's number of samples of each class.
        samples: The client's number of samples.
        state: State that clients keep between rounds.

    Raises:
        BadInput: A value is not one of these, or two that are merged contradict each other.
    """

    means: MeansPer | None = None
    partner: Literal["local", "global"] | None = None
    alpha: float | None = None
    each: bool = False
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
        flag("Needs: each", self.each)
        whole("Needs: layer", self.layer, 0)
        flag("Needs: counts", self.counts)
        flag("Needs: samples", self.samples)
        if self.state is not None:
            instance("Needs: state", self.state, ClientState, "give a ClientState, or None")

    @property
    def mixes(self) -> bool:
        """Whether samples are mixed with means or with other samples."""
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
    """Base class of all objectives.

    Subclass it and write `__call__`. Define `needs` if the objective uses more of a batch than x
    and y.

    `objective(model, params, anchor, batch)` returns the scalar that a local step minimises:
    `params` are the client's weights, `anchor` those at the start of the round. It draws no random
    numbers, stores nothing and does not depend on the engine that calls it.
    """

    @property
    def needs(self) -> Needs:
        """What a batch must hold besides samples; by default nothing."""
        return Needs()

    @abstractmethod
    def __call__(self, model: Model, params: Params, anchor: Params, batch: Batch) -> Tensor: ...

    def phases(self) -> tuple["Phase", ...]:
        """Return the gradient steps that are taken for each batch, in order."""
        return (Phase(self),)

    def __add__(self, other: "Objective | Callable[..., Tensor]") -> "Objective":
        return Sum(self, as_objective(other))

    def __radd__(self, other: Callable[..., Tensor]) -> "Objective":
        return Sum(as_objective(other), self)

    def __mul__(self, weight: float) -> "Objective":
        return Weighted(weight, self)

    __rmul__ = __mul__


@dataclass(frozen=True)
class Phase:
    """One gradient step: minimise `objective` in the parameters of the layers from `layer` on."""

    objective: Objective
    layer: int = 0


@dataclass(frozen=True)
class Sum(Objective):
    """The sum of two objectives.

    If one of them has several phases, the other is added to each.

    Raises:
        BadInput: A term is not an objective, both have several phases, or their needs differ.
    """

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


@dataclass(frozen=True)
class Weighted(Objective):
    """An objective times a number, such as `0.5 * FedMix(lam=0.1)`.

    Raises:
        BadInput: `weight` is no finite number, or `objective` is no objective.

    >>> from fedmix import Proximal, Supervised
    >>> 0.5 * Supervised() + Proximal(mu=0.1)
    Sum(first=Weighted(weight=0.5, objective=Supervised()), second=Proximal(mu=0.1))
    """

    weight: float
    objective: Objective

    def __post_init__(self) -> None:
        if not math.isfinite(number("an objective's weight", self.weight)):
            raise BadInput(f"an objective's weight={self.weight} must be finite")
        instance("objective", self.objective, Objective, "give one, such as FedMix(lam=0.1)")

    @property
    def needs(self) -> Needs:
        return self.objective.needs

    def __call__(self, model: Model, params: Params, anchor: Params, batch: Batch) -> Tensor:
        return self.weight * self.objective(model, params, anchor, batch)

    def phases(self) -> tuple[Phase, ...]:
        return tuple(
            Phase(Weighted(self.weight, p.objective), p.layer) for p in self.objective.phases()
        )


@dataclass(frozen=True)
class Function(Objective):
    """A plain function of (model, params, anchor, batch) as an objective that needs nothing."""

    function: Callable[[Model, Params, Params, Batch], Tensor]

    def __repr__(self) -> str:
        return titled(self)

    def __call__(self, model: Model, params: Params, anchor: Params, batch: Batch) -> Tensor:
        return self.function(model, params, anchor, batch)


def as_objective(given: Any) -> Objective:
    """Return an objective as it is, and a function of an objective's arguments as one.

    Raises:
        BadInput: It is neither.

    >>> def plain(model, params, anchor, batch):
    ...     return batch_mean(model.loss(model(params, batch.x, batch.key), batch.y), batch.mask)
    >>> titled(as_objective(plain))
    'plain'
    """
    if isinstance(given, Objective):
        return given
    if not callable(given) or isclass(given) or isinstance(given, nn.Module):
        raise BadInput(
            f"`objective` is {described(given)}; give an Objective, such as FedMix(lam=0.1), or a "
            "function of (model, params, anchor, batch)"
        )
    try:
        signature(given).bind(*range(4))
    except (TypeError, ValueError):
        raise BadInput(
            f"`objective` is {described(given)} with other arguments; make them (model, params, "
            "anchor, batch), and give losses of outputs and targets as `loss`"
        ) from None
    return Function(given)


def titled(objective: Objective) -> str:
    """The name of an objective's class, or of the function that it is."""
    named = objective.function if isinstance(objective, Function) else type(objective)
    return str(getattr(named, "__name__", type(named).__name__))


def parts(objective: Objective) -> Iterator[Objective]:
    """Yield the objective and all objectives that it is made of."""
    yield objective
    for part in vars(objective).values():
        if isinstance(part, Objective):
            yield from parts(part)


def batch_mean(per_sample: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the samples of a batch, without padding.

    Args:
        per_sample: One value per sample, (B,).
        mask: 1 for a sample and 0 for padding, (B,).
    """
    return (per_sample * mask).sum() / mask.sum().clamp(min=1)


def ratio(who: str, lam: float) -> None:
    """Raise BadInput for a mixing ratio outside [0, 1]; `who` names the objective."""
    if not 0 <= number(f"{who}: lam", lam) <= 1:
        raise BadInput(
            f"{who}: lam={lam} is outside [0, 1]; small values such as 0.05 to 0.2 are usual"
        )


def beta(who: str, alpha: float) -> None:
    """Raise BadInput for a parameter of a Beta distribution that is not positive and finite."""
    if not 0 < number(f"{who}: alpha", alpha) < math.inf:
        raise BadInput(f"{who}: alpha={alpha} must be positive; 1 draws λ uniformly")


def ratio_or_beta(who: str, lam: float | None, alpha: float | None) -> None:
    """Raise BadInput unless exactly one of λ and alpha is given, and in its range."""
    if (lam is None) == (alpha is None):
        both = (
            "; objective.alpha=none (alpha=None in Python) takes the drawn one away"
            if lam is not None
            else ""
        )
        raise BadInput(
            f"{who}: give either alpha (λ drawn from Beta(alpha, alpha) per batch) or a fixed "
            f"lam{both}"
        )
    if alpha is not None:
        beta(who, alpha)
    if lam is not None:
        ratio(who, lam)


def ratio_per(who: str, alpha: float | None, lam_per: MeansPer) -> None:
    """Raise BadInput for a fixed λ per sample, and for another word than batch or sample."""
    one_of(f"{who}: lam_per", lam_per, "batch", "sample")
    if alpha is None and lam_per == "sample":
        raise BadInput(f"{who}: lam_per='sample' is for a drawn λ; give alpha, or leave it out")


def mixing(batch: Batch, lam: float | None) -> Tensor | float:
    """Return the fixed λ, or the one that came with a batch; raise BadInput if there is none."""
    found = batch.lam if lam is None else lam
    if found is None:
        raise BadInput("this batch carries no mixing ratio; alpha in `needs` has one drawn")
    return found


def beside(lam: Tensor | float, samples: Tensor) -> Tensor | float:
    """Return λ in a shape that multiplies samples (B, ...): itself, or (B, 1, ...) of (B,)."""
    if isinstance(lam, Tensor) and lam.ndim:
        return lam.reshape(-1, *[1] * (samples.ndim - 1))
    return lam


def received(batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the means (x, y) that came with a batch; raise BadInput if it has none."""
    if batch.mean_x is None or batch.mean_y is None:
        raise BadInput("this batch carries no received means; run a mean exchange first")
    return batch.mean_x, batch.mean_y
