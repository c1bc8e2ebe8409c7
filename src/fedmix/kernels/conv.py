"""Convolution that stays fast when every client has filters of its own.

`conv2d` is `torch.nn.functional.conv2d` (stride 1) of one client. Under `vmap` over clients it becomes one Triton kernel for all
of them, where it would otherwise be a grouped convolution, which GPUs are slow at. Convolution is bilinear and so is each of
its derivatives: three products give gradients of any order, in forward and in reverse mode.
"""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedmix.kernels.precision import current

HAS_TRITON = find_spec("triton") is not None


def conv2d(x: Tensor, w: Tensor, pad: int) -> Tensor:
    """Images (B, C, H, W) with filters (O, C, R, S), zero-padded by `pad` on all sides."""
    if not (HAS_TRITON and x.is_cuda and w.dtype == torch.float32):
        return F.conv2d(x, w, padding=pad)
    y: Tensor = Conv.apply(_channels_last(x.float()), _channels_last(w), pad, current())
    return y.permute(0, 3, 1, 2)


def _channels_last(t: Tensor) -> Tensor:
    return t.permute(0, 2, 3, 1).contiguous()


def _channels_first(t: Tensor) -> Tensor:
    return t.permute(0, 3, 1, 2)


def _backward(g: Tensor, x: Tensor, w: Tensor, pad: int, which: int) -> Tensor:
    wanted = [i == which for i in range(3)]
    args = (_channels_first(t) for t in (g, x, w))
    found = torch.ops.aten.convolution_backward(*args, None, (1, 1), (pad, pad), (1, 1), False, (0, 0), 1, wanted)
    return _channels_last(found[which])


# The three products for K clients at once, channels last, as operators that a compiler takes as they are. Each body is the
# plain twin of the Triton kernel that serves CUDA tensors.


@torch.library.custom_op("fedmix::conv", mutates_args=())
def _conv(x: Tensor, w: Tensor, pad: int, how: str) -> Tensor:
    pairs = zip(x, w, strict=True)
    return torch.stack([_channels_last(F.conv2d(_channels_first(a), _channels_first(b), padding=pad)) for a, b in pairs])


@torch.library.custom_op("fedmix::conv_input", mutates_args=())
def _conv_input(g: Tensor, w: Tensor, pad: int, how: str) -> Tensor:
    like = g.new_empty(_input_shape(g, w, pad))
    return torch.stack([_backward(a, x, b, pad, 0) for a, b, x in zip(g, w, like, strict=True)])


@torch.library.custom_op("fedmix::conv_weight", mutates_args=())
def _conv_weight(g: Tensor, x: Tensor, pad: int, how: str) -> Tensor:
    like = g.new_empty(_weight_shape(g, x, pad))
    return torch.stack([_backward(a, b, w, pad, 1) for a, b, w in zip(g, x, like, strict=True)])


def _output_shape(x: Tensor, w: Tensor, pad: int) -> tuple[int, ...]:
    return (*x.shape[:2], x.shape[2] + 2 * pad - w.shape[2] + 1, x.shape[3] + 2 * pad - w.shape[3] + 1, w.shape[1])


def _input_shape(g: Tensor, w: Tensor, pad: int) -> tuple[int, ...]:
    return (*g.shape[:2], g.shape[2] - 2 * pad + w.shape[2] - 1, g.shape[3] - 2 * pad + w.shape[3] - 1, w.shape[4])


def _weight_shape(g: Tensor, x: Tensor, pad: int) -> tuple[int, ...]:
    taps = (x.shape[2] + 2 * pad - g.shape[2] + 1, x.shape[3] + 2 * pad - g.shape[3] + 1)
    return (g.shape[0], g.shape[4], *taps, x.shape[4])


def _register(op: Any, name: str, shape: Callable[[Tensor, Tensor, int], tuple[int, ...]]) -> None:
    def fake(a: Tensor, b: Tensor, pad: int, how: str) -> Tensor:
        return a.new_empty(shape(a, b, pad))

    def fast(a: Tensor, b: Tensor, pad: int, how: str) -> Tensor:
        from fedmix.kernels import conv_triton

        result: Tensor = getattr(conv_triton, name)(a, b, pad, how)
        return result

    def over_clients(info: Any, dims: tuple[int | None, ...], a: Tensor, b: Tensor, pad: int, how: str) -> tuple[Tensor, int]:
        """vmap: another leading axis joins that of the clients."""
        folded = [
            (t.expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0)).flatten(0, 1)
            for t, d in zip((a, b), dims[:2], strict=True)
        ]
        return op(*folded, pad, how).unflatten(0, (info.batch_size, -1)), 0

    op.register_fake(fake)
    op.register_kernel("cuda")(fast)
    op.register_vmap(over_clients)


_register(_conv, "conv", _output_shape)
_register(_conv_input, "conv_input", _input_shape)
_register(_conv_weight, "conv_weight", _weight_shape)


class _Bilinear(torch.autograd.Function):
    """One client's product a·b. `of_first(g, a, b)` and `of_second(g, a, b)` carry a gradient g back to its factors."""

    generate_vmap_rule = True
    op: Any

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        a, b, ctx.pad, ctx.how = inputs
        ctx.save_for_backward(a, b)
        ctx.save_for_forward(a, b)

    @classmethod
    def _tangent(cls, ctx: Any, da: Tensor | None, db: Tensor | None) -> Tensor:
        a, b = ctx.saved_tensors
        parts = [] if da is None else [cls.apply(da, b, ctx.pad, ctx.how)]
        parts += [] if db is None else [cls.apply(a, db, ctx.pad, ctx.how)]
        total: Tensor = sum(parts[1:], parts[0])
        return total


class Conv(_Bilinear):
    """y = x ∗ w."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, pad: int, how: str) -> Tensor:
        return _conv(x[None], w[None], pad, how)[0]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        g = g.contiguous()
        to_x = ConvInput.apply(g, w, ctx.pad, ctx.how) if ctx.needs_input_grad[0] else None
        to_w = ConvWeight.apply(g, x, ctx.pad, ctx.how) if ctx.needs_input_grad[1] else None
        return to_x, to_w, None, None

    @staticmethod
    def jvp(ctx: Any, dx: Tensor | None, dw: Tensor | None, *_: Any) -> Tensor:
        return Conv._tangent(ctx, dx, dw)


class ConvInput(_Bilinear):
    """The gradient of x ∗ w in x: a product of the gradient g in y with w."""

    @staticmethod
    def forward(g: Tensor, w: Tensor, pad: int, how: str) -> Tensor:
        return _conv_input(g[None], w[None], pad, how)[0]

    @staticmethod
    def backward(ctx: Any, c: Tensor) -> tuple[Tensor | None, ...]:
        g, w = ctx.saved_tensors
        c = c.contiguous()
        to_g = Conv.apply(c, w, ctx.pad, ctx.how) if ctx.needs_input_grad[0] else None
        to_w = ConvWeight.apply(g, c, ctx.pad, ctx.how) if ctx.needs_input_grad[1] else None
        return to_g, to_w, None, None

    @staticmethod
    def jvp(ctx: Any, dg: Tensor | None, dw: Tensor | None, *_: Any) -> Tensor:
        return ConvInput._tangent(ctx, dg, dw)


class ConvWeight(_Bilinear):
    """The gradient of x ∗ w in w: a product of the gradient g in y with x."""

    @staticmethod
    def forward(g: Tensor, x: Tensor, pad: int, how: str) -> Tensor:
        return _conv_weight(g[None], x[None], pad, how)[0]

    @staticmethod
    def backward(ctx: Any, c: Tensor) -> tuple[Tensor | None, ...]:
        g, x = ctx.saved_tensors
        c = c.contiguous()
        to_g = Conv.apply(x, c, ctx.pad, ctx.how) if ctx.needs_input_grad[0] else None
        to_x = ConvInput.apply(g, c, ctx.pad, ctx.how) if ctx.needs_input_grad[1] else None
        return to_g, to_x, None, None

    @staticmethod
    def jvp(ctx: Any, dg: Tensor | None, dx: Tensor | None, *_: Any) -> Tensor:
        return ConvWeight._tangent(ctx, dg, dx)
