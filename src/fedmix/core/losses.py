"""Losses per sample, each linear in the target.

Linearity is what lets a mean of targets stand for the targets (the paper's section 3.3).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fedmix.core.errors import BadInput
from fedmix.core.rng import trial
from fedmix.core.validation import is_number, shown

LARGEST = torch.finfo(torch.float32).max

PerSample: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""A loss: outputs (B, ...) and targets of the same shape to one value per sample, (B,)."""


@dataclass(frozen=True)
class Loss:
    """A training loss and the score that is reported with it.

    All functions take (outputs, targets) and return one value per sample. Objectives call the loss
    itself, which checks the shapes and returns `value`.

    Args:
        name: Name in settings and messages.
        value: The function to minimise; it gets as many targets as outputs.
        report: The loss to show.
        score: The score, averaged over a test set.
        score_name: Name of the score, such as "accuracy".
    """

    name: str
    value: PerSample
    report: PerSample
    score: PerSample
    score_name: str

    @property
    def weights(self) -> Tensor | None:
        """Weights of classes, (C,), if it has some."""
        return self.value.weights if isinstance(self.value, Weighted) else None

    def weighted(self, weights: Sequence[float]) -> "Loss":
        """Return this loss with a weight for each class: ℓ_w(z, y) = Σ_c w_c·y_c·ℓ(z, e_c).

        It stays linear in the target y, so soft labels and means have the weights of their shares.
        Weights are used as they are, and a batch's loss is the sum over its samples divided by
        their number. `torch.nn.CrossEntropyLoss(weight=w)` does the same for soft labels; for class
        indices it divides by the sum of the batch's weights instead, which would let a sample's
        loss depend on the rest of its batch. The two agree with reduction "none" or "sum".

        What is reported, the test loss and the score, has no weights.

        Args:
            weights: A number of 0 or more for each class. n / (C·n_c) lets classes count alike, and
                has mean 1 over n samples, n_c of each class.

        Raises:
            BadInput: The weights are no such numbers, or the loss is not linear in its target.

        >>> rare = cross_entropy.weighted([1.0, 5.0])
        >>> rare(torch.zeros(2, 2), torch.eye(2)).tolist()  # ln 2, and five times as much
        [0.6931471824645996, 3.465735912322998]
        """
        given: Any = weights.tolist() if hasattr(weights, "tolist") else weights
        usable = isinstance(given, list | tuple) and all(
            is_number(w) and 0 <= w <= LARGEST for w in given
        )
        if not usable or not any(given):
            raise BadInput(
                f"weights of classes {shown(weights)}: give a number of 0 or more for each class, "
                "not all 0"
            )
        if isinstance(self.value, Weighted):
            raise BadInput(f"the loss {self.name!r} has weights already; give all at once")
        if not is_linear(self.value, len(given)):
            raise BadInput(
                f"the loss {self.name!r} is not linear in its target, so that classes in a target "
                "cannot have weights of their own; use cross_entropy or squared_error"
            )
        name = f"{self.name} weighted {' '.join(f'{w:g}' for w in given)}"
        value = Weighted(self.value, torch.tensor(given, dtype=torch.float32))
        return replace(self, name=name, value=value)

    def to(self, where: torch.device | torch.dtype) -> "Loss":
        """Return the loss with its weights on another device or in another type."""
        if not isinstance(self.value, Weighted):
            return self
        return replace(self, value=replace(self.value, weights=self.value.weights.to(where)))

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of every sample.

        Args:
            outputs: Outputs of the model, (B, C).
            targets: Target vectors, (B, C), or (1, C) for one that all samples share.

        Raises:
            BadInput: The shapes do not match, for example if targets are class indices.
        """
        if targets.shape not in (outputs.shape, (1, *outputs.shape[1:])):
            raise BadInput(
                f"targets of shape {tuple(targets.shape)} for outputs of shape "
                f"{tuple(outputs.shape)}; give each sample a vector "
                "(torch.nn.functional.one_hot makes them of class indices)"
            )
        return self.value(outputs, targets.expand_as(outputs))


@dataclass(frozen=True, eq=False)
class Weighted:
    """The value of a loss, linear in its target, with a weight for each class."""

    plain: PerSample
    weights: Tensor

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return Σ_c w_c·y_c·ℓ(z, e_c) for each sample.

        For a loss a(z) + b(z)·y that is b(z)·(w∘y) + a(z)·Σ_c w_c·y_c, and a(z) is ℓ(z, 0).

        Raises:
            BadInput: There are not as many outputs as weights.
        """
        if outputs.shape[-1:] != self.weights.shape:
            raise BadInput(
                f"the loss has weights for {len(self.weights)} classes and the model "
                f"{outputs.shape[-1]} outputs; give one for each class"
            )
        heavy = self.weights.to(outputs.device) * targets
        at_zero = self.plain(outputs, torch.zeros_like(targets))
        return self.plain(outputs, heavy) + (heavy.sum(-1) - 1) * at_zero


def plain(loss: Loss) -> PerSample:
    """The value of a loss without weights of classes."""
    return loss.value.plain if isinstance(loss.value, Weighted) else loss.value


def is_linear(value: PerSample, *shape: int) -> bool:
    """Whether the loss of a mean of targets is the mean of the losses, tried in float64.

    Args:
        value: The loss.
        *shape: Shape of one sample's outputs.
    """
    normal = trial(torch.float64)
    # targets as a loss of shares may ask for; a share of one class would be 1 for every sample
    target = torch.sigmoid if shape[-1:] == (1,) else partial(torch.softmax, dim=-1)
    z, a, b = normal((4, *shape)), *(target(normal((4, *shape))) for _ in range(2))
    of_mean, mean = value(z, (a + b) / 2), (value(z, a) + value(z, b)) / 2
    return torch.allclose(of_mean, mean, 1e-4, 1e-6)


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return -(targets * torch.log_softmax(outputs, -1)).sum(-1)


def _correct(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(-1) == targets.argmax(-1)).to(outputs.dtype)


def _squared_error_linear(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs * outputs / 2 - outputs * targets).sum(-1)


def _squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs - targets) ** 2 / 2).sum(-1)


def _mean_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs - targets) ** 2).mean(-1)


cross_entropy = Loss("cross_entropy", _cross_entropy, _cross_entropy, _correct, "accuracy")
"""ℓ(z, y) = −Σ_c y_c log softmax(z)_c; labels y may be soft."""

squared_error = Loss(
    "squared_error", _squared_error_linear, _squared_error, _mean_squared_error, "mse"
)
"""ℓ(z, y) = ½‖z‖² − z·y.

It is linear in y and differs from ½‖z − y‖² by ½‖y‖², so gradients with respect to z are equal.
"""
