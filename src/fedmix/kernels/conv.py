"""Convolution that stays fast when every client has its own filters.

`conv2d` is `torch.nn.functional.conv2d` (stride 1) of one client. Under `vmap` over clients it
becomes one Triton kernel for all of them; otherwise it would be a grouped convolution, which is
slow on GPUs. Convolution is bilinear and so is each of its derivatives: three products give
gradients of any order, in forward and in reverse mode.
"""

from functools import reduce
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedmix.kernels.layout import channels_first, channels_last
from fedmix.kernels.operators import has_triton, only_stacked, operator
from fedmix.kernels.precision import current, stored
from fedmix.kernels.sizes import bias_parts, parts

VECTOR = 8  # channels that a CPU multiplies at once
MANY_PRODUCTS = 1 << 20  # in one client's convolution, above which a call of it costs little


def conv2d(x: Tensor, w: Tensor, b: Tensor | None, pad: int, shifted: int) -> Tensor:
    """Convolve images (B, C, H, W), zero-padded by `pad`, with filters (O, C, R, S).

    The bias is added to the first `shifted` images only.
    """
    if not (x.is_cuda and x.ndim == 4 and w.dtype == torch.float32 and has_triton()):
        if not x.is_cuda and x.ndim == 4 and only_stacked():
            y: Tensor = _Stacked.apply(x, w, pad)
            return y if b is None else _shifted(y, b, shifted)
        if b is None or shifted == len(x):
            return F.conv2d(x, w, b, padding=pad)
        return _shifted(F.conv2d(x, w, padding=pad), b, shifted)
    if b is None:
        b, shifted = w.new_zeros(len(w)), 0
    x, w = (channels_last(t.to(stored())) for t in (x, w))
    return channels_first(Conv.apply(x, w, b, shifted, pad, current()))


def _shifted(y: Tensor, b: Tensor, shifted: int) -> Tensor:
    """Add the bias to the first `shifted` images."""
    if shifted == len(y):
        return y + b.view(-1, 1, 1)
    has_bias = torch.arange(len(y), device=y.device).view(-1, 1, 1, 1) < shifted
    return y + torch.where(has_bias, b.view(-1, 1, 1), 0)


class _Stacked(torch.autograd.Function):
    """A convolution on a CPU that `vmap` runs in the faster of two forms.

    Measured forward and backward with ten clients of ten images on one core of an AMD EPYC: as one
    grouped convolution, 16 to 32 channels of 8x8 take 1.1 ms and one client after another 2.1; 6 to
    16 channels of 14x14 take 3.4 and 2.7 ms, 3 to 32 of 32x32 26 and 17. The library is slow with
    groups whose channels do not fill its vectors, and calls of it cost some 0.1 ms a client.
    """

    @staticmethod
    def forward(x: Tensor, w: Tensor, pad: int) -> Tensor:
        return F.conv2d(x, w, padding=pad)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Do nothing: it is applied where `vmap` is outermost, which calls the rule below."""

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], x: Tensor, w: Tensor, pad: int) -> Any:
        x, w = (
            t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
            for t, dim in zip((x, w), dims[:2], strict=True)
        )
        _, B, C, H, W = x.shape
        if C % VECTOR == 0 or B * H * W * w[0].numel() < MANY_PRODUCTS:
            images = x.transpose(0, 1).reshape(B, -1, H, W)
            y = F.conv2d(images, w.flatten(0, 1), padding=pad, groups=len(w))
            return y.unflatten(1, (len(w), -1)), 1
        return torch.stack([F.conv2d(a, v, padding=pad) for a, v in zip(x, w, strict=True)]), 0


def _wide_type(t: Tensor) -> torch.dtype:
    """The type in which products are summed: at least 32 bits."""
    return torch.promote_types(t.dtype, torch.float32)


def _wide(t: Tensor) -> Tensor:
    return t.to(_wide_type(t))


def _backward(g: Tensor, x: Tensor, w: Tensor, pad: int, which: int) -> Tensor:
    wanted = [i == which for i in range(3)]
    args = (channels_first(t) for t in (g, x, w))
    found = torch.ops.aten.convolution_backward(
        *args, None, (1, 1), (pad, pad), (1, 1), False, (0, 0), 1, wanted
    )
    return channels_last(found[which])


# The three products for K clients at once, channels last, as operators that are opaque to a
# compiler. Each body is the plain version of the Triton kernel for CUDA tensors. Both factors have
# one type; the gradients of filters and biases have at least 32 bits, other results the factors'
# type.


def _conv(x: Tensor, w: Tensor, b: Tensor, shifted: int, pad: int, how: str) -> Tensor:
    clients = zip(_wide(x), _wide(w), strict=True)
    y = torch.stack(
        [
            channels_last(F.conv2d(channels_first(a), channels_first(v), padding=pad))
            for a, v in clients
        ]
    )
    y[:, :shifted] += b[:, None, None, None]
    return y.to(x.dtype)


def _conv_input(g: Tensor, w: Tensor, pad: int, how: str) -> Tensor:
    like = g.new_empty(_input_shape(g, w, pad))
    clients = zip(_wide(g), _wide(w), _wide(like), strict=True)
    return torch.stack([_backward(a, x, v, pad, 0) for a, v, x in clients]).to(g.dtype)


def _conv_weight(
    g: Tensor, x: Tensor, shifted: int, pad: int, parts: int, how: str
) -> tuple[Tensor, Tensor]:
    of_w, of_b = (t.zero_() for t in _weight_results(g, x, pad, parts))
    g, x = _wide(g), _wide(x)
    for k, (a, c) in enumerate(zip(g, x, strict=True)):
        of_w[k, 0] = _backward(a, c, of_w[k, 0], pad, 1)
    of_b[:, 0] = g[:, :shifted].sum((1, 2, 3))
    return of_w, of_b


def _output_shape(x: Tensor, w: Tensor, pad: int) -> tuple[int, ...]:
    return (
        *x.shape[:2],
        x.shape[2] + 2 * pad - w.shape[2] + 1,
        x.shape[3] + 2 * pad - w.shape[3] + 1,
        w.shape[1],
    )


def _input_shape(g: Tensor, w: Tensor, pad: int) -> tuple[int, ...]:
    return (
        *g.shape[:2],
        g.shape[2] - 2 * pad + w.shape[2] - 1,
        g.shape[3] - 2 * pad + w.shape[3] - 1,
        w.shape[4],
    )


def _weight_results(g: Tensor, x: Tensor, pad: int, parts: int) -> tuple[Tensor, Tensor]:
    (K, *pixels, O), C = g.shape, x.shape[4]
    taps = (x.shape[2] + 2 * pad - g.shape[2] + 1, x.shape[3] + 2 * pad - g.shape[3] + 1)
    sums, wide = bias_parts(prod(pixels), C, x.itemsize), _wide_type(g)
    return g.new_empty(K, parts, O, *taps, C, dtype=wide), g.new_empty(K, sums, O, dtype=wide)


def _triton() -> Any:
    from fedmix.kernels import conv_triton

    return conv_triton


_op = operator(
    _conv,
    lambda x, w, b, shifted, pad, how: x.new_empty(_output_shape(x, w, pad)),
    lambda *args: _triton().conv(*args),
)
_op_input = operator(
    _conv_input,
    lambda g, w, pad, how: g.new_empty(_input_shape(g, w, pad)),
    lambda *args: _triton().conv_input(*args),
)
_op_weight = operator(
    _conv_weight,
    lambda g, x, shifted, pad, parts, how: _weight_results(g, x, pad, parts),
    lambda *args: _triton().conv_weight(*args),
)


class Conv(torch.autograd.Function):
    """One client's y = x ∗ w, with b added to the first `shifted` images; all channels-last."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, w: Tensor, b: Tensor, shifted: int, pad: int, how: str) -> Tensor:
        return _op(x[None], w[None], b[None], shifted, pad, how)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, w, b, *ctx.how = inputs
        ctx.save_for_backward(x, w, b)
        ctx.save_for_forward(x, w, b)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, w, _ = ctx.saved_tensors
        shifted, pad, how = ctx.how
        g = g.contiguous()
        to_x = ConvInput.apply(g, w, pad, how) if ctx.needs_input_grad[0] else None
        to_w, to_b = (
            ConvWeight.apply(g, x, shifted, pad, how)
            if any(ctx.needs_input_grad[1:3])
            else (None, None)
        )
        return to_x, to_w, to_b, None, None, None

    @staticmethod
    def jvp(ctx: Any, dx: Tensor | None, dw: Tensor | None, db: Tensor | None, *_: Any) -> Tensor:
        x, w, b = ctx.saved_tensors
        none = torch.zeros_like(b)
        parts = [] if dx is None else [Conv.apply(dx, w, none, *ctx.how)]
        if dw is not None or db is not None:
            parts.append(
                Conv.apply(
                    x,
                    torch.zeros_like(w) if dw is None else dw,
                    none if db is None else db,
                    *ctx.how,
                )
            )
        return reduce(torch.add, parts)


class ConvInput(torch.autograd.Function):
    """The gradient of x ∗ w in x: a product of the gradient g in y with w."""

    generate_vmap_rule = True

    @staticmethod
    def forward(g: Tensor, w: Tensor, pad: int, how: str) -> Tensor:
        return _op_input(g[None], w[None], pad, how)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        g, w, *ctx.how = inputs
        ctx.save_for_backward(g, w)
        ctx.save_for_forward(g, w)

    @staticmethod
    def backward(ctx: Any, c: Tensor) -> tuple[Tensor | None, ...]:
        g, w = ctx.saved_tensors
        c = c.contiguous()
        to_g = (
            Conv.apply(c, w, w.new_zeros(len(w)), 0, *ctx.how) if ctx.needs_input_grad[0] else None
        )
        to_w = ConvWeight.apply(g, c, 0, *ctx.how)[0] if ctx.needs_input_grad[1] else None
        return to_g, to_w, None, None

    @staticmethod
    def jvp(ctx: Any, dg: Tensor | None, dw: Tensor | None, *_: Any) -> Tensor:
        g, w = ctx.saved_tensors
        parts = [] if dg is None else [ConvInput.apply(dg, w, *ctx.how)]
        parts += [] if dw is None else [ConvInput.apply(g, dw, *ctx.how)]
        return reduce(torch.add, parts)


class ConvWeight(torch.autograd.Function):
    """The gradients of x ∗ w + b in w and b: a product of the gradient g in y with x, and a sum."""

    generate_vmap_rule = True

    @staticmethod
    def forward(g: Tensor, x: Tensor, shifted: int, pad: int, how: str) -> tuple[Tensor, Tensor]:
        taps = (x.shape[1] + 2 * pad - g.shape[1] + 1) * (x.shape[2] + 2 * pad - g.shape[2] + 1)
        cut = parts(g.shape[:3].numel(), g.shape[3], x.shape[3], taps)
        of_w, of_b = _op_weight(g[None], x[None], shifted, pad, cut, how)
        # term by term, so that a compiler fuses the sum with what follows
        return sum(of_w[0, 1:], of_w[0, 0]), of_b[0].sum(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        g, x, *ctx.how = inputs
        ctx.save_for_backward(g, x)
        ctx.save_for_forward(g, x)

    @staticmethod
    def backward(ctx: Any, cw: Tensor, cb: Tensor) -> tuple[Tensor | None, ...]:
        g, x = ctx.saved_tensors
        _, pad, how = ctx.how
        cw = cw.to(x.dtype).contiguous()
        to_g = Conv.apply(x, cw, cb, *ctx.how) if ctx.needs_input_grad[0] else None
        to_x = ConvInput.apply(g, cw, pad, how) if ctx.needs_input_grad[1] else None
        return to_g, to_x, None, None, None

    @staticmethod
    def jvp(ctx: Any, dg: Tensor | None, dx: Tensor | None, *_: Any) -> tuple[Tensor, Tensor]:
        g, x = ctx.saved_tensors
        _, pad, how = ctx.how
        pairs = [] if dg is None else [ConvWeight.apply(dg, x, *ctx.how)]
        pairs += [] if dx is None else [ConvWeight.apply(g, dx, 0, pad, how)]
        dw, db = (reduce(torch.add, of) for of in zip(*pairs, strict=True))
        return dw, db
