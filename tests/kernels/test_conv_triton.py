"""The convolution kernels, interpreted, and their plain twins give what PyTorch's own convolution
gives client by client.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import fedmix.kernels.conv  # noqa: F401  (defines the operators)
from fedmix.kernels.sizes import BLOCK, MANY, SUMMED
from tests.kernels.interpreter import Interpreter


class Case(NamedTuple):
    K: int
    B: int
    H: int
    W: int
    C: int
    O: int  # noqa: E741
    taps: int
    pad: int
    shifted: int


CASES = {
    "one-channel": Case(K=3, B=2, H=5, W=7, C=1, O=4, taps=3, pad=1, shifted=2),
    "colours": Case(K=1, B=3, H=7, W=7, C=3, O=6, taps=5, pad=2, shifted=1),
    "lenet": Case(K=3, B=1, H=7, W=6, C=6, O=16, taps=5, pad=0, shifted=1),
    "many-filters": Case(K=1, B=3, H=5, W=6, C=2, O=40, taps=3, pad=1, shifted=0),
    "whole-block": Case(K=3, B=2, H=4, W=5, C=32, O=7, taps=3, pad=1, shifted=1),
    "wide-margin": Case(K=1, B=2, H=4, W=3, C=3, O=4, taps=3, pad=2, shifted=2),
    "margin-wider-than-the-filter": Case(K=2, B=2, H=3, W=4, C=2, O=3, taps=3, pad=3, shifted=1),
    "one-tap": Case(K=2, B=2, H=20, W=15, C=5, O=3, taps=1, pad=0, shifted=2),
    "many-channels": Case(K=3, B=2, H=6, W=7, C=MANY, O=6, taps=3, pad=1, shifted=1),
    "many-channels-no-margin": Case(K=1, B=3, H=5, W=7, C=72, O=20, taps=5, pad=0, shifted=3),
    "many-channels-wide-margin": Case(K=1, B=2, H=3, W=3, C=65, O=3, taps=3, pad=2, shifted=0),
    "two-blocks-of-channels": Case(K=1, B=1, H=3, W=4, C=130, O=130, taps=3, pad=1, shifted=1),
}


def drawn(case: Case) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images, filters, bias and a gradient of the outputs, all channels-last, scaled so that
    outputs are near 1.
    """
    rng = torch.Generator().manual_seed(0)
    out = [n + 2 * case.pad - case.taps + 1 for n in (case.H, case.W)]
    x = torch.randn(case.K, case.B, case.H, case.W, case.C, generator=rng)
    w = (
        torch.randn(case.K, case.O, case.taps, case.taps, case.C, generator=rng)
        / (case.C * case.taps**2) ** 0.5
    )
    g = torch.randn(case.K, case.B, *out, case.O, generator=rng) / (case.B * out[0] * out[1]) ** 0.5
    return x, w, torch.randn(case.K, case.O, generator=rng), g


def expected(case: Case, x: Tensor, w: Tensor, b: Tensor, g: Tensor) -> tuple[Tensor, ...]:
    """The output and the gradients of ⟨g, y⟩ in x, w and b, of every client by itself, by autograd
    in float64.
    """
    found = []
    for one in zip(x.double(), w.double(), b.double(), g.double(), strict=True):
        x1, w1, b1, g1 = (t.clone().requires_grad_() for t in one)
        y = F.conv2d(x1.permute(0, 3, 1, 2), w1.permute(0, 3, 1, 2), padding=case.pad).permute(
            0, 2, 3, 1
        )
        first = torch.arange(case.B).view(-1, 1, 1, 1) < case.shifted
        y = y + b1 * first
        found.append((y.detach(), *torch.autograd.grad((y * g1).sum(), (x1, w1, b1))))
    return tuple(torch.stack(part) for part in zip(*found, strict=True))


def close(got: Tensor, wanted: Tensor, within: float = 1e-5) -> None:
    torch.testing.assert_close(got.double(), wanted.double(), rtol=within, atol=within)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_twins(case: Case) -> None:
    x, w, b, g = drawn(case)
    y, to_x, to_w, to_b = expected(case, x, w, b, g)
    close(torch.ops.fedmix.conv(x, w, b, case.shifted, case.pad, "float32"), y)
    close(torch.ops.fedmix.conv_input(g, w, case.pad, "float32"), to_x)
    of_w, of_b = torch.ops.fedmix.conv_weight(g, x, case.shifted, case.pad, 3, "float32")
    assert (of_w.shape[1], of_b.shape[1]) == (
        3,
        math.ceil(g.shape[1:4].numel() / (SUMMED if x.shape[4] < MANY else BLOCK)),
    )
    close(of_w.sum(1), to_w)
    close(of_b.sum(1), to_b)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_kernels(interpreted: Interpreter, case: Case) -> None:
    x, w, b, g = drawn(case)
    y, to_x, to_w, to_b = expected(case, x, w, b, g)
    close(interpreted("conv_triton", "conv", x, w, b, case.shifted, case.pad, "float32")[0], y)
    close(interpreted("conv_triton", "conv_input", g, w, case.pad, "float32")[0], to_x)
    of_w, of_b = interpreted(
        "conv_triton", "conv_weight", g, x, case.shifted, case.pad, 1, "float32"
    )
    assert (of_w.shape[1], of_b.shape[1]) == (
        1,
        math.ceil(g.shape[1:4].numel() / (SUMMED if x.shape[4] < MANY else BLOCK)),
    )
    close(of_w[:, 0], to_w)
    close(of_b.sum(1), to_b)


@pytest.mark.parametrize("parts", [2, 5])
@pytest.mark.parametrize(
    "case", [CASES["colours"], CASES["many-channels-no-margin"]], ids=["few", "many"]
)
def test_parts_sum_to_the_gradient(interpreted: Interpreter, case: Case, parts: int) -> None:
    """Also where there are more parts than blocks of pixels, so that the last ones have none."""
    x, w, b, g = drawn(case)
    _, _, to_w, to_b = expected(case, x, w, b, g)
    of_w, of_b = interpreted(
        "conv_triton", "conv_weight", g, x, case.shifted, case.pad, parts, "float32"
    )
    assert of_w.shape[1] == parts
    close(of_w.sum(1), to_w)
    close(of_b.sum(1), to_b)


@pytest.mark.parametrize("case", [CASES["colours"], CASES["many-channels"]], ids=["few", "many"])
def test_tf32(interpreted: Interpreter, case: Case) -> None:
    """The interpreter multiplies exactly."""
    x, w, b, g = drawn(case)
    y, to_x, to_w, to_b = expected(case, x, w, b, g)
    close(interpreted("conv_triton", "conv", x, w, b, case.shifted, case.pad, "tf32")[0], y)
    close(interpreted("conv_triton", "conv_input", g, w, case.pad, "tf32")[0], to_x)
    of_w, of_b = interpreted("conv_triton", "conv_weight", g, x, case.shifted, case.pad, 1, "tf32")
    close(of_w[:, 0], to_w)
    close(of_b.sum(1), to_b)


TILES_INSIDE_TAPS = Case(K=1, B=1, H=3, W=3, C=256, O=64, taps=3, pad=1, shifted=1)


@pytest.mark.parametrize(
    "case", [*CASES.values(), TILES_INSIDE_TAPS], ids=[*CASES, "tiles-inside-taps"]
)
def test_bf16(interpreted: Interpreter, case: Case) -> None:
    """Factors of 8 bits have exact products.

    Outputs and gradients of images are rounded to 8 bits again, other sums are not.
    """
    x, w, b, g = drawn(case)
    x, w, g = (t.bfloat16() for t in (x, w, g))
    y, to_x, to_w, to_b = expected(case, x, w, b, g)

    def check(call: Callable[..., tuple[Tensor, ...]]) -> None:
        for got, wanted in (
            (call("conv", x, w, b, case.shifted, case.pad, "bf16")[0], y),
            (call("conv_input", g, w, case.pad, "bf16")[0], to_x),
        ):
            assert got.dtype == torch.bfloat16
            torch.testing.assert_close(got.double(), wanted, rtol=2**-8, atol=1e-5)
        of_w, of_b = call("conv_weight", g, x, case.shifted, case.pad, 1, "bf16")
        assert of_w.dtype == of_b.dtype == torch.float32
        assert of_b.shape[1] == math.ceil(g.shape[1:4].numel() / SUMMED)
        close(of_w[:, 0], to_w)
        close(of_b.sum(1), to_b)

    check(lambda *args: interpreted("conv_triton", *args))
    check(_twin)


def _twin(name: str, *args: Any) -> tuple[Tensor, ...]:
    result = getattr(torch.ops.fedmix, name)(*args)
    return result if isinstance(result, tuple) else (result,)
