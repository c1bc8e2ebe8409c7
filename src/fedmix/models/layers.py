"""Layers that PyTorch lacks, or that are too slow there when each client has its own weights."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedmix.core.rng import keep_mask
from fedmix.kernels.conv import conv2d
from fedmix.kernels.linear import linear
from fedmix.kernels.lstm import lstm
from fedmix.kernels.maxpool import largest, pick


class KeyedDropout(nn.Module):
    """Dropout whose mask is a hash of (`key`, `site`, position).

    The caller sets the buffer `key` for every step; `site` is the index of the layer in its model.
    """

    key: Tensor

    def __init__(self, p: float, site: int = 0, whole_channels: bool = False) -> None:
        super().__init__()
        self.p, self.site, self.whole_channels = p, site, whole_channels
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x if not self.training or self.p == 0 else x * self.factor(x)

    def extra_repr(self) -> str:
        return f"p={self.p}, whole_channels={self.whole_channels}"

    def factor(self, x: Tensor) -> Tensor:
        """The factor of each element: 0, or more than 1 so that the mean stays."""
        shape = (*x.shape[:2], *[1] * (x.ndim - 2)) if self.whole_channels else tuple(x.shape)
        scale = 1 / (1 - self.p) if self.p < 1 else 0.0
        return keep_mask(self.key, self.site, shape, self.p).to(x.dtype) * scale


class Conv2d(nn.Conv2d):
    """`nn.Conv2d` that runs the filters of all clients in one kernel (kernels/conv.py)."""

    @staticmethod
    def can_replace(layer: nn.Module) -> bool:
        """Whether it is plain: stride 1, square zero padding, no groups and no dilation."""
        if type(layer) is not nn.Conv2d:
            return False
        plain = (
            layer.stride == layer.dilation == (1, 1)
            and layer.groups == 1
            and layer.padding_mode == "zeros"
        )
        pads = layer.padding if isinstance(layer.padding, tuple) else (0, 1)
        return plain and pads[0] == pads[1] and layer.kernel_size[0] == layer.kernel_size[1]

    def forward(self, x: Tensor) -> Tensor:
        return conv2d(x, self.weight, self.bias, int(self.padding[0]), len(x))


class Linear(nn.Linear):
    """`nn.Linear` whose product is an operator of its own (kernels/products.py).

    It can be traced together with its derivative (kernels/linear.py).
    """

    @staticmethod
    def can_replace(layer: nn.Module) -> bool:
        """Whether it is an `nn.Linear` and no subclass."""
        return type(layer) is nn.Linear

    def forward(self, x: Tensor) -> Tensor:
        y = linear(x, self.weight)
        return y if self.bias is None else y + self.bias


class MaxPool2d(nn.MaxPool2d):
    """`nn.MaxPool2d` that a compiler fuses with its neighbours (kernels/maxpool.py)."""

    @staticmethod
    def can_replace(layer: nn.Module) -> bool:
        """Whether it pools windows of 2x2 with stride 2, without padding."""
        if type(layer) is not nn.MaxPool2d:
            return False
        both = (layer.kernel_size, layer.stride) in ((2, 2), ((2, 2), (2, 2)))
        return both and (layer.padding, layer.dilation, layer.ceil_mode, layer.return_indices) == (
            0,
            1,
            False,
            False,
        )

    def forward(self, x: Tensor) -> Tensor:
        return pick(x, largest(x))


class GroupNorm(nn.GroupNorm):
    """`nn.GroupNorm` from plain operations."""

    @staticmethod
    def can_replace(layer: nn.Module) -> bool:
        """Whether it is an `nn.GroupNorm` and no subclass."""
        return type(layer) is nn.GroupNorm

    def forward(self, x: Tensor) -> Tensor:
        return group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


class LayerNorm(nn.LayerNorm):
    """`nn.LayerNorm` from plain operations."""

    @staticmethod
    def can_replace(layer: nn.Module) -> bool:
        """Whether it is an `nn.LayerNorm` and no subclass."""
        return type(layer) is nn.LayerNorm

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


def group_norm(
    x: Tensor,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """`torch.nn.functional.group_norm` from plain operations."""
    split = torch.unflatten(x, 1, (groups, x.shape[1] // groups)).flatten(2)
    shape = (x.shape[1], *[1] * (x.ndim - 2))
    return _scaled(_standardised(split, (-1,), eps).reshape(x.shape), weight, bias, shape)


def layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """`torch.nn.functional.layer_norm` from plain operations."""
    shape = tuple(normalized_shape)
    if x.shape[-len(shape) :] != shape:  # a weight of one element, or none, would broadcast
        raise ValueError(f"LayerNorm({shape}) got an input of shape {tuple(x.shape)}")
    return _scaled(_standardised(x, tuple(range(-len(shape), 0)), eps), weight, bias, shape)


def _standardised(x: Tensor, over: tuple[int, ...], eps: float) -> Tensor:
    """Scale to mean 0 and variance 1, in single precision at least.

    The derivative of PyTorch's own kernels for this cannot be traced.
    """
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    variance, mean = torch.var_mean(x, over, correction=0, keepdim=True)
    return (x - mean) * torch.rsqrt(variance + eps)


def _scaled(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, shape: tuple[int, ...]
) -> Tensor:
    x = x if weight is None else x * weight.view(shape)
    return x if bias is None else x + bias.view(shape)


class UnitFeatures(nn.Module):
    """Scale each sample's features to mean square 1: x / √(mean(x²) + ε)."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


class Embedding(nn.Module):
    """Embed one-hot (or averaged one-hot) vectors, (..., size) to (..., width).

    Weights are initialised as in `nn.Embedding`.
    """

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, width).normal_())

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class LSTM(nn.Module):
    """One LSTM layer over (B, T, in): `nn.LSTM` with one bias and a forward-mode derivative.

    i, f, o = σ(…), g = tanh(…), c ← f·c + i·g, h ← o·tanh(c), with all four gates from one product
    per step.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(hidden)
        self.input_weight = nn.Parameter(torch.empty(4 * hidden, inputs).uniform_(-bound, bound))
        self.hidden_weight = nn.Parameter(torch.empty(4 * hidden, hidden).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(4 * hidden).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        return lstm(x @ self.input_weight.T + self.bias, self.hidden_weight)


class LastStep(nn.Module):
    """The last time step of (B, T, d)."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, -1]
