"""A module's value and its derivative along a direction, both in one pass.

Forward mode takes a pair (x, dx) through the layers. A linear layer treats both alike, so the pair goes through it as one
batch: its weights are read once. A direction that all samples share stays one (a batch of 1) for as long as layers are linear.
ReLU, max-pooling and dropout decide by x and do the same to dx. Any other module is left to `torch.func.jvp`.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import jvp

from fedmix.models.layers import LSTM, Conv2d, Embedding, KeyedDropout, LastStep, Linear, MaxPool2d

Pair: TypeAlias = tuple[Tensor, Tensor]


class Along(nn.Module):
    """`Along(module)(x, dx)` is (f(x), ∂f/∂x · dx); dx may be one for the whole batch."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor, dx: Tensor) -> Pair:
        y, dy = _through(self.module, x, dx)
        return y, dy.expand_as(y)


def _through(module: nn.Module, x: Tensor, dx: Tensor) -> Pair:
    hooked = module._forward_hooks or module._forward_pre_hooks  # which only a call of the module runs
    rule = _by_jvp if hooked else _RULES.get(type(module), _by_jvp)
    return rule(module, x, dx)


def _by_jvp(module: nn.Module, x: Tensor, dx: Tensor) -> Pair:
    value, derivative = jvp(module, (x,), (dx.expand_as(x),))[:2]
    return value, derivative


def _in_order(module: Any, x: Tensor, dx: Tensor) -> Pair:
    for child in module._modules.values():  # not children(), which leaves out an object that it has met before
        x, dx = _through(child, x, dx)
    return x, dx


def _linear(module: nn.Module, x: Tensor, dx: Tensor) -> Pair:
    """f(x) = Ax."""
    both = module(torch.cat([x, dx]))
    return both[: len(x)], both[len(x) :]


def _by_itself(module: Any, x: Tensor, dx: Tensor) -> Pair:
    y, dy = module.along(x, dx)
    return y, dy


def _relu(module: nn.Module, x: Tensor, dx: Tensor) -> Pair:
    return torch.relu(x), torch.where(x > 0, dx, 0)


def _dropout(module: Any, x: Tensor, dx: Tensor) -> Pair:
    kept = module.factor(x)
    return x * kept, dx * kept


_RULES: dict[type[nn.Module], Callable[[Any, Tensor, Tensor], Pair]] = {
    nn.Sequential: _in_order,
    **dict.fromkeys((Conv2d, Linear, MaxPool2d, LSTM), _by_itself),
    **dict.fromkeys((Embedding, LastStep, nn.Flatten, nn.AvgPool2d, nn.Identity), _linear),
    nn.ReLU: _relu,
    KeyedDropout: _dropout,
}
