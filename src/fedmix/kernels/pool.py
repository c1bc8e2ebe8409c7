"""2x2 max-pooling in two steps: which of the four is the largest, then pick it.

To pick is linear, and its transpose puts a gradient back where the value came from. So the same two functions serve a value,
the derivative that goes along with it, and gradients of both. On a GPU they are written out, so that a compiler joins them
with the layers around; on a CPU, where compiled code reads every other element slowly, they are single operators.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedmix.kernels.operators import operator


def largest(x: Tensor) -> Tensor:
    """Which of every two by two of (B, C, H, W) is the largest; of equals the first in reading order, as in PyTorch.

    Written out it is a number from 0 to 3, else a position in the image.
    """
    if not written_out(x):
        return _largest_op(x.detach())
    a, b, c, d = _quarters(x)
    above, below = _later(a, b), _later(c, d)
    lower = _later(torch.where(above, b, a), torch.where(below, d, c))
    return torch.where(lower, below.to(torch.uint8) + 2, above.to(torch.uint8))


def pick(x: Tensor, which: Tensor) -> Tensor:
    """The chosen one of every two by two."""
    result: Tensor = _Pick.apply(x, which)
    return result


def written_out(x: Tensor) -> bool:
    """Whether these steps are formulas for a compiler, or single operators."""
    return x.is_cuda


def _quarters(x: Tensor) -> tuple[Tensor, ...]:
    """The four corners of every window, in reading order; an odd last row or column is left out."""
    height, width = x.shape[-2] // 2 * 2, x.shape[-1] // 2 * 2
    return tuple(x[..., i:height:2, j:width:2] for i in (0, 1) for j in (0, 1))


def _largest(x: Tensor) -> Tensor:
    planes = x.reshape(1, -1, *x.shape[-2:]).contiguous(memory_format=torch.channels_last)  # searched many planes at a time
    which = F.max_pool2d(planes, 2, return_indices=True)[1].contiguous()
    return which.view(*x.shape[:-2], *which.shape[-2:])


def _pick(x: Tensor, which: Tensor) -> Tensor:
    return x.flatten(-2).gather(-1, which.flatten(-2)).view(which.shape)


def _put(g: Tensor, which: Tensor, height: int, width: int) -> Tensor:
    put = g.new_zeros(*g.shape[:-2], height * width).scatter_(-1, which.flatten(-2), g.flatten(-2))
    return put.view(*g.shape[:-2], height, width)


def _halves(x: Tensor) -> tuple[int, int]:
    return x.shape[-2] // 2, x.shape[-1] // 2


_largest_op = operator(_largest, lambda x: x.new_empty(*x.shape[:-2], *_halves(x), dtype=torch.int64))
_pick_op = operator(_pick, lambda x, which: x.new_empty(which.shape))
_put_op = operator(_put, lambda g, which, height, width: g.new_empty(*g.shape[:-2], height, width))


def _later(first: Tensor, second: Tensor) -> Tensor:
    """Whether the second is larger; as in PyTorch, NaN is larger than anything."""
    return (second > first) | second.isnan()


class _Pick(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, which: Tensor) -> Tensor:
        if not written_out(x):
            return _pick_op(x, which)
        a, b, c, d = _quarters(x)
        return torch.where(which < 2, torch.where(which == 0, a, b), torch.where(which == 2, c, d))

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


class _Put(torch.autograd.Function):
    """The transpose of `_Pick`: each value to its place in its window of (H, W), zeros elsewhere."""

    generate_vmap_rule = True

    @staticmethod
    def forward(g: Tensor, which: Tensor, height: int, width: int) -> Tensor:
        if not written_out(g):
            return _put_op(g, which, height, width)
        here = torch.arange(4, device=g.device).view(2, 1, 2)
        spread = torch.where(which[..., :, None, :, None] == here, g[..., :, None, :, None], 0)
        put = spread.reshape(*g.shape[:-2], 2 * g.shape[-2], 2 * g.shape[-1])
        odd = height - put.shape[-2], width - put.shape[-1]
        return F.pad(put, (0, odd[1], 0, odd[0])) if any(odd) else put

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
