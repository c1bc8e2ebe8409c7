"""Losses per sample, each linear in the target.

Linearity is what lets a mean of targets stand for the targets (the paper's section 3.3).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from fedmix.core.errors import BadInput
from fedmix.core.rng import trial

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


def is_linear(value: PerSample, *shape: int) -> bool:
    """Whether the loss of a mean of targets is the mean of the losses, tried in float64.

    Args:
        value: The loss.
        *shape: Shape of one sample's outputs.
    """
    normal = trial(torch.float64)
    z, a, b = normal((4, *shape)), *(normal((4, *shape)).softmax(-1) for _ in range(2))
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
