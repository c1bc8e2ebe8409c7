"""2x2 max-pooling in two steps: find which of the four is the largest, then pick it.

Picking is linear, and its transpose puts a gradient back where the value came from. So the same two
functions serve a value, its forward-mode derivative, and gradients of both. When traced for a
compiler they are written as formulas, which it fuses with the layers around. The formulas read and
write channels last, as convolutions do; on a CPU clients are channels too, so that many of them are
compared at a time.
"""

from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.nn import functional as F

from fedmix.kernels.layout import channels_first, channels_last
from fedmix.kernels.operators import operator


def largest(x: Tensor) -> Tensor:
    """Find which element of every 2x2 window of (B, C, H, W) is the largest; ties go to the first.

    The order is reading order, as in PyTorch. In the written-out form the result is a number from 0
    to 3, else a position in the image.
    """
    which: Tensor = _Largest.apply(x.detach())
    return which


def pick(x: Tensor, which: Tensor) -> Tensor:
    """Take the chosen element of every 2x2 window."""
    result: Tensor = _Pick.apply(x, which)
    return result


def written_out(x: Tensor) -> bool:
    """Whether these steps are formulas for a compiler, or calls of PyTorch's own functions."""
    return x.is_cuda or get_proxy_mode() is not None


def _quarters(x: Tensor) -> tuple[Tensor, ...]:
    """The four corners of every window, in reading order, channels last.

    An odd last row or column is left out.
    """
    height, width = x.shape[-2] // 2 * 2, x.shape[-1] // 2 * 2
    rows = channels_last(x)
    return tuple(rows[..., i:height:2, j:width:2, :] for i in (0, 1) for j in (0, 1))


def _later(first: Tensor, second: Tensor) -> Tensor:
    """Whether the second is larger; as in PyTorch, NaN is larger than anything."""
    return (second > first) | second.isnan()


def _computed(t: Tensor) -> Tensor:
    """Return the tensor unchanged, as a point that a compiler for a CPU must compute once.

    Otherwise it would compute it again wherever it is used.
    """
    return t if t.is_cuda else _copy_op(t)


def _copy(t: Tensor) -> Tensor:
    return t.clone()


_copy_op = operator(_copy, torch.empty_like)


class _ByClient(torch.autograd.Function):
    """A function of images whose `vmap` runs many clients at once.

    The clients' images become more images of one batch, or on a CPU more channels.
    """

    @classmethod
    def vmap(cls, info: Any, dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
        axis = 0 if args[0].is_cuda else args[0].ndim - (dims[0] is not None) - 3

        def folded(value: Any, dim: int | None) -> Any:
            if not isinstance(value, Tensor):
                return value
            mapped = (
                value.expand(info.batch_size, *value.shape).movedim(0, axis)
                if dim is None
                else value.movedim(dim, axis)
            )
            return mapped.flatten(axis, axis + 1)

        result: Tensor = cls.apply(
            *[folded(value, dim) for value, dim in zip(args, dims, strict=True)]
        )
        return result.unflatten(axis, (info.batch_size, -1)), axis


class _Largest(_ByClient):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        if not written_out(x):
            # channels last, so that many planes are searched at a time
            planes = x.reshape(1, -1, *x.shape[-2:]).contiguous(memory_format=torch.channels_last)
            found = F.max_pool2d(planes, 2, return_indices=True)[1].contiguous()
            return found.view(*x.shape[:-2], *found.shape[-2:])
        # a CPU is much faster if these numbers are as wide as the values
        number = torch.uint8 if x.is_cuda else torch.int32
        a, b, c, d = _quarters(x)
        above, below = _later(a, b), _later(c, d)
        lower = _later(torch.where(above, b, a), torch.where(below, d, c))
        return channels_first(_computed(torch.where(lower, below.to(number) + 2, above.to(number))))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)


class _Pick(_ByClient):
    @staticmethod
    def forward(x: Tensor, which: Tensor) -> Tensor:
        if not written_out(x):
            return x.flatten(-2).gather(-1, which.flatten(-2)).view(which.shape)
        a, b, c, d = _quarters(x)
        place = channels_last(which)
        return channels_first(
            torch.where(place < 2, torch.where(place == 0, a, b), torch.where(place == 2, c, d))
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.save_for_forward(inputs[1])
        ctx.size = inputs[0].shape[-2:]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return _Put.apply(g, ctx.saved_tensors[0], *ctx.size), None

    @staticmethod
    def jvp(ctx: Any, dx: Tensor, _: None) -> Tensor:
        result: Tensor = _Pick.apply(dx, ctx.saved_tensors[0])
        return result


class _Put(_ByClient):
    """The transpose of `_Pick`: puts each value at its place in its window, zeros elsewhere."""

    @staticmethod
    def forward(g: Tensor, which: Tensor, height: int, width: int) -> Tensor:
        if not written_out(g):
            put = g.new_zeros(*g.shape[:-2], height * width).scatter_(
                -1, which.flatten(-2), g.flatten(-2)
            )
            return put.view(*g.shape[:-2], height, width)
        value, place = (
            t[..., :, None, :, None, :] for t in (_computed(channels_last(g)), channels_last(which))
        )
        here = torch.arange(4, device=g.device, dtype=which.dtype).view(2, 1, 2, 1)
        put = torch.where(place == here, value, 0).flatten(-5, -4).flatten(-3, -2)
        odd = height - put.shape[-3], width - put.shape[-2]
        return channels_first(F.pad(put, (0, 0, 0, odd[1], 0, odd[0])) if any(odd) else put)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.save_for_forward(inputs[1])
        ctx.size = inputs[2:]

    @staticmethod
    def backward(ctx: Any, c: Tensor) -> tuple[Tensor | None, ...]:
        return _Pick.apply(c, ctx.saved_tensors[0]), None, None, None

    @staticmethod
    def jvp(ctx: Any, dg: Tensor, *_: None) -> Tensor:
        result: Tensor = _Put.apply(dg, ctx.saved_tensors[0], *ctx.size)
        return result
