"""Product of a linear layer with a forward-mode derivative that can be traced under vmap.

If the weight does not change, PyTorch's own derivative also multiplies by zeros, which the tracer
(in torch 2.11 and 2.13) often takes for a tensor on another device.
"""

from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.nn import functional as F


def linear(x: Tensor, w: Tensor) -> Tensor:
    """x·wᵀ of (..., I) and (O, I)."""
    if get_proxy_mode() is None:
        return F.linear(x, w)
    y: Tensor = _Linear.apply(x, w)
    return y


class _Linear(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, w: Tensor) -> Tensor:
        return F.linear(x, w)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor]:
        x, w = ctx.saved_tensors
        to_w = g.reshape(-1, g.shape[-1]).T @ x.reshape(-1, x.shape[-1])
        return g @ w if ctx.needs_input_grad[0] else None, to_w

    @staticmethod
    def jvp(ctx: Any, dx: Tensor | None, dw: Tensor | None) -> Tensor:
        x, w = ctx.saved_tensors
        parts = ([] if dx is None else [F.linear(dx, w)]) + (
            [] if dw is None else [F.linear(x, dw)]
        )
        return reduce(torch.add, parts)
