"""The LSTM's recurrence as a function: first-order gradients of values and derivatives, under vmap,
and nothing beyond.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, jvp, vmap

from fedmix.kernels.lstm import _Recurrence, lstm, lstm_along, recurrence
from tests.kernels.derivatives import normal
from tests.kernels.test_lstm_triton import by_pytorch, cells

K, B, T, D = 3, 2, 4, 3


def fast(p: Tensor, w: Tensor) -> Any:
    return _Recurrence.apply(p, w, "float32")[0]  # type: ignore[no-untyped-call]


def plain(p: Tensor, w: Tensor) -> Tensor:
    """h of (1, B, T, 4D); h and its derivative of (2, B, T, 4D), the value and its direction."""
    if len(p) == 1:
        return cells(p[0], w)[None]
    return torch.stack(jvp(lambda q: cells(q, w), (p[0],), (p[1],))[:2])


@pytest.mark.parametrize("time", [1, T])
@pytest.mark.parametrize("J", [1, 2])
def test_gradients(J: int, time: int) -> None:
    """In the gates' inputs (and the direction) and the weights, of three clients at once and of one
    alone.
    """
    p, w, slopes = (
        normal(K, J, B, time, 4 * D),
        normal(K, 4 * D, D, seed=1),
        normal(K, J, B, time, D, seed=2),
    )

    def of(f: Any) -> Any:
        return grad(lambda p, w, g: (f(p, w) * g).sum(), (0, 1))

    torch.testing.assert_close(vmap(fast)(p, w), vmap(plain)(p, w))
    torch.testing.assert_close(vmap(of(fast))(p, w, slopes), vmap(of(plain))(p, w, slopes))
    torch.testing.assert_close(of(fast)(p[0], w[0], slopes[0]), of(plain)(p[0], w[0], slopes[0]))


def test_values_of_pytorchs_layer() -> None:
    p, w = normal(B, T, 4 * D), normal(4 * D, D, seed=1)
    wanted = by_pytorch(p, w)
    torch.testing.assert_close(fast(p[None], w)[0], wanted)
    torch.testing.assert_close(recurrence(p, w)[0], wanted)
    torch.testing.assert_close(lstm(p, w), wanted)


def test_the_derivative_by_finite_differences() -> None:
    """(h(p + ε·dp) − h(p − ε·dp)) / 2ε, off by O(ε²)."""
    p, dp, w, step = (
        normal(B, T, 4 * D),
        normal(B, T, 4 * D, seed=3),
        normal(4 * D, D, seed=1),
        1e-5,
    )
    wanted = (by_pytorch(p + step * dp, w) - by_pytorch(p - step * dp, w)) / (2 * step)
    for h, dh in (lstm_along(torch.stack([p, dp]), w), fast(torch.stack([p, dp]), w)):
        torch.testing.assert_close(h, by_pytorch(p, w))
        torch.testing.assert_close(dh, wanted, rtol=1e-7, atol=1e-8)


def test_no_gradient_of_a_gradient() -> None:
    p, w = normal(1, B, T, 4 * D), normal(4 * D, D, seed=1)
    first = grad(lambda p: torch.sin(fast(p, w)).sum())
    assert bool(first(p).any())
    with pytest.raises(NotImplementedError, match="backward mode AD"):
        grad(lambda p: torch.sin(first(p)).sum())(p)


def test_derivative_along_a_direction_of_inputs_and_weights() -> None:
    p, w, dp, dw = (
        normal(1, B, T, 4 * D),
        normal(4 * D, D, seed=1),
        normal(1, B, T, 4 * D, seed=2),
        normal(4 * D, D, seed=3),
    )
    for moved, directions in (((p, w), (dp, dw)), ((p,), (dp,))):
        found = jvp(lambda *a: fast(*a, *(() if len(a) == 2 else (w,))), moved, directions)[1]
        expected = jvp(
            lambda *a: recurrence(a[0][0], a[1] if len(a) == 2 else w)[0][None], moved, directions
        )[1]
        torch.testing.assert_close(found, expected)
