"""2x2 max-pooling in two steps that a compiler joins with the layers around them: which of the four, then pick it.

To pick is linear, and its transpose puts a gradient back where the value came from. So the same two functions serve a value,
the derivative that goes along with it, and gradients of both.
"""

from typing import Any

import torch
from torch import Tensor


def largest(x: Tensor) -> Tensor:
    """Which of every two by two of (B, C, H, W) is the largest, 0 to 3 in reading order; of equals the first, as in PyTorch."""
    a, b, c, d = _quarters(x)
    above, below = b > a, d > c
    lower = torch.where(below, d, c) > torch.where(above, b, a)
    return torch.where(lower, below.to(torch.uint8) + 2, above.to(torch.uint8))


def pick(x: Tensor, which: Tensor) -> Tensor:
    """The chosen one of every two by two."""
    result: Tensor = _Pick.apply(x, which)
    return result


def _quarters(x: Tensor) -> tuple[Tensor, ...]:
    """The four corners of every window, in reading order; an odd last row or column is left out."""
    height, width = x.shape[-2] // 2 * 2, x.shape[-1] // 2 * 2
    return tuple(x[..., i:height:2, j:width:2] for i in (0, 1) for j in (0, 1))


class _Pick(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, which: Tensor) -> Tensor:
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
        here = torch.arange(4, device=g.device).view(2, 1, 2)
        spread = torch.where(which[..., :, None, :, None] == here, g[..., :, None, :, None], 0)
        put = spread.reshape(*g.shape[:-2], 2 * g.shape[-2], 2 * g.shape[-1])
        odd = height - put.shape[-2], width - put.shape[-1]
        return torch.nn.functional.pad(put, (0, odd[1], 0, odd[0])) if any(odd) else put

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
