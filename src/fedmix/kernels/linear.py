"""A full layer for few samples, whose weights' gradient a compiler joins with the update that uses it.

For B samples the gradient is a sum of B outer products. As a matrix product it is written to memory and read again by the
update; written out as a sum it is computed where it is used, which on a GPU saves two passes over the weights.
"""

from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

FEW = 32  # samples up to which the sum is written out


def linear(x: Tensor, w: Tensor) -> Tensor:
    """x·wᵀ of (B, I) and (O, I)."""
    if not (x.is_cuda and x.ndim == 2 and len(x) <= FEW and x.dtype == w.dtype == torch.float32):
        return F.linear(x, w)
    y: Tensor = _Linear.apply(x, w)
    return y


class _Linear(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, w: Tensor) -> Tensor:
        return x @ w.T

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor]:
        x, w = ctx.saved_tensors
        to_w = g[0, :, None] * x[0]
        for sample in range(1, len(x)):
            to_w = to_w + g[sample, :, None] * x[sample]
        return g @ w if ctx.needs_input_grad[0] else None, to_w

    @staticmethod
    def jvp(ctx: Any, dx: Tensor | None, dw: Tensor | None) -> Tensor:
        x, w = ctx.saved_tensors
        parts = ([] if dx is None else [dx @ w.T]) + ([] if dw is None else [x @ dw.T])
        return reduce(torch.add, parts)
