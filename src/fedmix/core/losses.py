"""Losses per sample, each linear in the target: what lets a mean of targets stand for the targets
(the paper's section 3.3).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedmix.core.errors import BadInput


@dataclass(frozen=True)
class Loss:
    """A training loss and the score that people read.

    `value(outputs, targets)` is what is minimised and `report` what is shown, both per sample;
    `score` per sample is averaged over a test set and named `score_name`. Objectives call the loss
    itself, which is `value` with a look at the shapes.
    """

    name: str
    value: Callable[[Tensor, Tensor], Tensor]
    report: Callable[[Tensor, Tensor], Tensor]
    score: Callable[[Tensor, Tensor], Tensor]
    score_name: str

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of every sample.

        Targets are vectors like the outputs, one for each of them or one for all.
        """
        if targets.shape not in (outputs.shape, (1, *outputs.shape[1:])):
            raise BadInput(
                f"targets of shape {tuple(targets.shape)} for outputs of shape "
                f"{tuple(outputs.shape)}; give each sample "
                "a vector (torch.nn.functional.one_hot makes them of class indices)"
            )
        return self.value(outputs, targets)


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
"""ℓ(z, y) = −Σ_c y_c log softmax(z)_c, for labels y that may be soft."""

squared_error = Loss(
    "squared_error", _squared_error_linear, _squared_error, _mean_squared_error, "mse"
)
"""ℓ(z, y) = ½‖z‖² − z·y.

It differs from ½‖z − y‖² by ½‖y‖², so every gradient is the same, and it is linear in y.
"""
