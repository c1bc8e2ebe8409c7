"""The convolution as a function: derivatives of all kinds against torch.nn.functional.conv2d, and
when it is used.
"""

from collections.abc import Callable
from subprocess import CalledProcessError
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, vjp, vmap
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from fedmix.kernels import conv
from fedmix.kernels.conv import Conv, ConvInput, ConvWeight, conv2d
from fedmix.kernels.layout import channels_first, channels_last
from fedmix.kernels.operators import has_triton
from fedmix.kernels.precision import arithmetic
from fedmix.kernels.sizes import MANY, parts
from tests.kernels.derivatives import KINDS, compare, normal

K, B, H, W, C, O = 3, 4, 5, 6, 2, 3  # noqa: E741
CASES = {
    "all-shifted": (B, 3, 1),
    "some-shifted": (2, 3, 1),
    "none-shifted": (0, 3, 0),
    "five-taps": (B, 5, 2),
}


def plain(shifted: int, pad: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def conv(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        y = F.conv2d(x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2), padding=pad).permute(0, 2, 3, 1)
        first = torch.arange(len(x)).view(-1, 1, 1, 1) < shifted
        return y + b * first

    return conv


def drawn(taps: int, pad: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images, filters, bias and a gradient of the outputs of K clients."""
    out = [n + 2 * pad - taps + 1 for n in (H, W)]
    return (
        normal(K, B, H, W, C),
        normal(K, O, taps, taps, C, seed=1),
        normal(K, O, seed=2),
        normal(K, B, *out, O, seed=3),
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_conv(case: tuple[int, int, int], kind: str) -> None:
    shifted, taps, pad = case
    x, w, b, _ = drawn(taps, pad)
    compare(
        kind,
        lambda x, w, b: Conv.apply(x, w, b, shifted, pad, "float32"),  # type: ignore[no-untyped-call]
        plain(shifted, pad),
        (x, w, b),
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_conv_input(case: tuple[int, int, int], kind: str) -> None:
    shifted, taps, pad = case
    _, w, _, g = drawn(taps, pad)

    def by_autograd(g: Tensor, w: Tensor) -> Any:
        none = torch.zeros(O, dtype=torch.float64)
        return vjp(
            lambda x: plain(shifted, pad)(x, w, none), torch.zeros(B, H, W, C, dtype=torch.float64)
        )[1](g)[0]

    compare(kind, lambda g, w: ConvInput.apply(g, w, pad, "float32"), by_autograd, (g, w))  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_conv_weight(case: tuple[int, int, int], kind: str) -> None:
    shifted, taps, pad = case
    x, _, _, g = drawn(taps, pad)

    def by_autograd(g: Tensor, x: Tensor) -> Any:
        zeros = (
            torch.zeros(O, taps, taps, C, dtype=torch.float64),
            torch.zeros(O, dtype=torch.float64),
        )
        return vjp(lambda w, b: plain(shifted, pad)(x, w, b), *zeros)[1](g)

    compare(kind, lambda g, x: ConvWeight.apply(g, x, shifted, pad, "float32"), by_autograd, (g, x))  # type: ignore[no-untyped-call]


def test_gradients_of_samples_inside_clients() -> None:
    """vmap in vmap: one gradient for every sample of every client, with weights that the samples
    share.
    """
    x, w, b, _ = drawn(3, 1)

    def each(conv: Callable[..., Tensor]) -> Any:
        def loss(w: Tensor, b: Tensor, x: Tensor) -> Tensor:
            return torch.sin(conv(x[None], w, b)).sum()

        of_samples = vmap(grad(loss, (0, 1)), in_dims=(None, None, 0))
        return vmap(of_samples)(w, b, x)

    got = each(lambda x, w, b: Conv.apply(x, w, b, 1, 1, "float32"))  # type: ignore[no-untyped-call]
    assert [g.shape for g in got] == [(K, B, O, 3, 3, C), (K, B, O)]
    torch.testing.assert_close(got, each(plain(1, 1)))


@pytest.mark.parametrize("shared", ["images", "filters"])
def test_clients_may_share_an_argument(shared: str) -> None:
    x, w, b, _ = drawn(3, 1)
    dims = (None, 0, 0) if shared == "images" else (0, None, None)
    args = tuple(t[0] if d is None else t for t, d in zip((x, w, b), dims, strict=True))
    got = vmap(lambda x, w, b: Conv.apply(x, w, b, B, 1, "float32"), in_dims=dims)(*args)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(got, vmap(plain(B, 1), in_dims=dims)(*args))


def test_clients_along_another_axis() -> None:
    """The axis of clients need not be the first."""
    x, w, b, _ = drawn(3, 1)
    moved = (x.movedim(0, 2), w.movedim(0, 4), b.movedim(0, 1))
    got = vmap(lambda x, w, b: Conv.apply(x, w, b, B, 1, "float32"), in_dims=(2, 4, 1))(*moved)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(got, vmap(plain(B, 1))(x, w, b))
    one = [t[None] for t in moved]  # the operator itself, which has an axis of clients of its own
    got = vmap(lambda x, w, b: torch.ops.fedmix.conv(x, w, b, B, 1, "float32"), in_dims=(3, 5, 2))(
        *one
    )
    torch.testing.assert_close(got[:, 0], vmap(plain(B, 1))(x, w, b))


@pytest.mark.parametrize("shifted", [0, 2, B])
@pytest.mark.parametrize("bias", [True, False])
def test_on_a_cpu_it_is_pytorchs(bias: bool, shifted: int) -> None:
    x, w, b, _ = (t[0] for t in drawn(3, 1))
    first, filters = x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2)
    wanted = plain(shifted if bias else 0, 1)(x, w, b).permute(0, 3, 1, 2)
    torch.testing.assert_close(conv2d(first, filters, b if bias else None, 1, shifted), wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_in_bf16(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU images are rounded (by up to 2^−8) before and after, filters before; who gave
    float32 gets derivatives in it.
    """
    monkeypatch.setattr(conv, "has_triton", lambda: True)
    x, w, b, _ = (t.float() for t in drawn(3, 1))
    args = channels_first(x), channels_first(w) / 8, b
    ways = tuple(normal(*a.shape, seed=7 + i).float() for i, a in enumerate(args))

    def ours(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        with monkeypatch.context() as there:
            there.setattr(Tensor, "is_cuda", True)
            y = conv2d(x, w, b, 1, 2)
        assert y.dtype == torch.bfloat16
        return y.float()

    def theirs(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return channels_first(plain(2, 1)(channels_last(x), channels_last(w), b))

    with arithmetic("bf16"):
        got = tree_leaves(KINDS[kind](ours, args, ways))
    wanted = tree_leaves(KINDS[kind](theirs, args, ways))
    for one, exact in zip(got, wanted, strict=True):
        assert one.dtype == torch.float32
        assert (one - exact).norm() <= 2**-5 * exact.norm()
    assert any(
        not torch.equal(one, exact) for one, exact in zip(got, wanted, strict=True)
    )  # it did round


@pytest.mark.parametrize(
    "error", [RuntimeError("Failed to find C compiler"), CalledProcessError(1, "gcc")], ids=repr
)
def test_without_a_c_compiler_it_is_pytorchs(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton builds its driver at the first look at it, and cannot without a compiler and Python's
    headers.
    """

    class Driver:
        @property
        def active(self) -> object:
            raise error

    pytest.importorskip("triton")
    monkeypatch.setattr("triton.runtime.driver", Driver())
    monkeypatch.setattr(conv, "has_triton", has_triton.__wrapped__)
    x, w, b, _ = (t[0].float() for t in drawn(3, 1))
    wanted = plain(2, 1)(x, w, b)
    monkeypatch.setattr(Tensor, "is_cuda", True)
    torch.testing.assert_close(
        channels_last(conv2d(channels_first(x), channels_first(w), b, 1, 2)), wanted
    )


def test_parts_leave_a_share_of_pixels_to_each() -> None:
    """At least one and at most 17 parts, each of 256 pixels or more, and fewer the more programs
    there are already.
    """
    assert parts(100, 32, 3, 9) == 1
    assert parts(600, 32, 3, 9) == 2
    assert parts(10**6, 32, 3, 9) == 17
    for channels in (3, MANY - 1, MANY, 256):
        counts = [parts(10**6, outputs, channels, 9) for outputs in (16, 64, 256, 1024, 4096)]
        assert counts == sorted(counts, reverse=True)
        assert counts[-1] == 1
