"""A module's value and its derivative along a direction, both in one pass.

Forward mode takes a pair (x, dx) through the layers. Here the pair is one batch: n samples, then
their n derivatives, so that a layer reads its weights once and nothing is split. A linear layer
treats both alike, except for its bias. ReLU, max-pooling and dropout decide by x and do the same to
dx. A direction that all samples share stays one (n + 1 in the batch) while layers are linear. Any
other module is left to `torch.func.jvp`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import jvp
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedmix.kernels.conv import conv2d
from fedmix.kernels.lstm import lstm_along
from fedmix.kernels.maxpool import largest, pick
from fedmix.models.differentiable import Differentiable
from fedmix.models.layers import (
    LSTM,
    Conv2d,
    Embedding,
    KeyedDropout,
    LastStep,
    Linear,
    MaxPool2d,
)


class Along(nn.Module):
    """`Along(module)(x, dx)` returns f(x) and ∂f/∂x · dx; one dx may serve the whole batch."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor, dx: Tensor) -> tuple[Tensor, Tensor]:
        y, dy = _pair(_through(self.module, torch.cat([x, dx]), len(x)), len(x))
        return y, dy


def _pair(both: Tensor, n: int) -> Tensor:
    """Reshape the batch to (2, n, ...)."""
    if len(both) == 2 * n:
        return both.view(2, n, *both.shape[1:])
    return torch.stack([both[:n], both[n:].expand_as(both[:n])])


def _through(module: nn.Module, both: Tensor, n: int) -> Tensor:
    return _rule(module)(module, both, n)


def _rule(module: nn.Module) -> Callable[[Any, Tensor, int], Tensor]:
    """Choose the rule for a module.

    A rule replaces `forward` and skips hooks, so modules with hooks or a `forward` of their own get
    none.
    """
    own = module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module)
    return _by_jvp if own else _RULES.get(type(module), _by_jvp)


def by_rules(module: nn.Module) -> bool:
    """Whether every layer has a rule here, so that nothing is left to PyTorch's derivatives."""
    rule = _rule(module)
    return all(map(by_rules, module.children())) if rule is _in_order else rule is not _by_jvp


def _by_jvp(module: nn.Module, both: Tensor, n: int) -> Tensor:
    pair = _pair(both, n)  # indexed, since unpacked views cannot be changed in place
    # PyTorch's fused attention kernels have no forward-mode derivative
    with sdpa_kernel(SDPBackend.MATH), Differentiable():
        return torch.cat(jvp(module, (pair[0],), (pair[1],))[:2])


def _in_order(module: Any, both: Tensor, n: int) -> Tensor:
    for child in module._modules.values():  # children() would skip an object that is there twice
        both = _through(child, both, n)
    return both


def _linear(module: nn.Module, both: Tensor, n: int) -> Tensor:
    """Pass a linear function, f(x) = Ax."""
    result: Tensor = module(both)
    return result


def _shifted(both: Tensor, bias: Tensor | None, n: int) -> Tensor:
    """Add the bias to the values, but not to the derivatives."""
    if bias is None:
        return both
    values = torch.arange(len(both), device=both.device).view(-1, *[1] * (both.ndim - 1)) < n
    return both + torch.where(values, bias, 0)


def _conv(module: Any, both: Tensor, n: int) -> Tensor:
    return conv2d(both, module.weight, module.bias, int(module.padding[0]), n)


def _full(module: Any, both: Tensor, n: int) -> Tensor:
    return _shifted(F.linear(both, module.weight), module.bias, n)


def _lstm(module: Any, both: Tensor, n: int) -> Tensor:
    gates = _shifted(both @ module.input_weight.T, module.bias, n)
    return lstm_along(_pair(gates, n), module.hidden_weight).flatten(0, 1)


def _relu(module: nn.Module, both: Tensor, n: int) -> Tensor:
    pair = _pair(both, n)
    return torch.where(pair[0] <= 0, 0, pair).flatten(0, 1)  # keeps NaN


def _max_pool(module: nn.Module, both: Tensor, n: int) -> Tensor:
    which = largest(both[:n])
    if both.is_cuda:
        return pick(_pair(both, n), which.expand(2, *which.shape)).flatten(0, 1)
    x, dx = both[:n], both[n:]  # compiled code for a CPU reads these much faster than the pair
    return torch.cat([pick(x, which), pick(dx.expand_as(x), which)])


def _dropout(module: Any, both: Tensor, n: int) -> Tensor:
    kept: Tensor = module.factor(both[:n])
    return (_pair(both, n) * kept).flatten(0, 1)


_RULES: dict[type[nn.Module], Callable[[Any, Tensor, int], Tensor]] = {
    nn.Sequential: _in_order,
    Conv2d: _conv,
    Linear: _full,
    LSTM: _lstm,
    nn.ReLU: _relu,
    MaxPool2d: _max_pool,
    KeyedDropout: _dropout,
    **dict.fromkeys((Embedding, LastStep, nn.Flatten, nn.AvgPool2d, nn.Identity), _linear),
}
