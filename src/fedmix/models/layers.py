"""Layers that PyTorch lacks, or that are too slow there when each client has its own weights."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedmix.core.rng import keep_mask
from fedmix.kernels.conv import conv2d
from fedmix.kernels.linear import linear
from fedmix.kernels.lstm import layer
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


class Attention(nn.MultiheadAttention):
    """`nn.MultiheadAttention` from plain operations, whose dropout is a `KeyedDropout`."""

    dropped: KeyedDropout

    @staticmethod
    def can_replace(layer: nn.Module) -> bool:
        """Whether it is plain, with dropout: no subclass, and no further keys or values."""
        return (
            type(layer) is nn.MultiheadAttention
            and layer.dropout > 0
            and layer.bias_k is None
            and not layer.add_zero_attn
        )

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,  # noqa: ARG002 - only says of `attn_mask` what kind it is
    ) -> tuple[Tensor, Tensor | None]:
        if query.ndim != 3:
            raise ValueError(f"attention with dropout takes batches, not {tuple(query.shape)}")
        if not self.batch_first:
            query, key, value = (t.transpose(0, 1) for t in (query, key, value))
        q, k, v = (
            F.linear(t, w, b).reshape(*t.shape[:2], self.num_heads, -1).transpose(1, 2)
            for t, w, b in zip((query, key, value), *self._projections(), strict=True)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        if attn_mask is not None:  # (T, S), or (B·heads, T, S)
            each = attn_mask if attn_mask.ndim == 2 else attn_mask.reshape(scores.shape)
            scores = _masked(scores, each)
        if key_padding_mask is not None:
            scores = _masked(scores, key_padding_mask[:, None, None])
        weights = self.dropped(scores.softmax(-1))
        out = self.out_proj((weights @ v).transpose(1, 2).flatten(2))
        shown = (weights.mean(1) if average_attn_weights else weights) if need_weights else None
        return out if self.batch_first else out.transpose(0, 1), shown

    def _projections(self) -> tuple[Sequence[Tensor], Sequence[Tensor | None]]:
        """Weights and biases for query, key and value."""
        own = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        weights = own if self.in_proj_weight is None else self.in_proj_weight.chunk(3)
        return weights, [None] * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)


def _masked(scores: Tensor, mask: Tensor) -> Tensor:
    """Leave out what a mask of flags says, or add a mask of numbers."""
    return scores.masked_fill(mask, -math.inf) if mask.dtype == torch.bool else scores + mask


class Lookup(nn.Embedding):
    """`nn.Embedding` that takes one-hot vectors too, and their means: (..., size) to (..., width).

    Integers are looked up as ever.
    """

    @staticmethod
    def can_replace(layer: nn.Module) -> bool:
        """Whether it is an `nn.Embedding` and no subclass, whose gradients are as they come."""
        return type(layer) is nn.Embedding and not layer.scale_grad_by_freq

    def forward(self, x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return super().forward(x)
        weight = self.weight
        if self.padding_idx is not None:  # that row is not trained
            row = torch.arange(len(weight), device=weight.device)[:, None] == self.padding_idx
            weight = torch.where(row, weight.detach(), weight)
        return x @ weight


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
        return layer(x, self.input_weight, self.hidden_weight, self.bias)


class LastStep(nn.Module):
    """The last time step of (B, T, d)."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, -1]
