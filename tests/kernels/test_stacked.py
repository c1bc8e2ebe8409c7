"""Layers of many clients on a CPU, as `vmap` stacks them where they only step: their forms against
PyTorch's own layer, client by client.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, jvp, vmap
from torch.nn import functional as F

from fedmix.core.sharing import sharing
from fedmix.kernels import conv
from fedmix.kernels.conv import conv2d
from fedmix.kernels.lstm import _Stacked, layer
from tests.kernels.derivatives import normal
from tests.kernels.test_lstm_triton import cells

K, B, T, D = 3, 4, 5, 3


def gradients(f: Callable[..., Tensor], *given: Tensor) -> list[Tensor]:
    """The value, and what the sum of its squares asks of each tensor, by PyTorch's autograd."""
    live = [t.detach().requires_grad_() for t in given]
    value = f(*live)
    return [value.detach(), *torch.autograd.grad(value.square().sum(), live)]


def each(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *given: torch.stack([f(*one) for one in zip(*given, strict=True)])


@pytest.mark.parametrize("lanes", [False, True], ids=["grouped", "lanes"])
@pytest.mark.parametrize("shifted", [B, 2])
def test_convolutions(shifted: int, lanes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bias goes to all images, or to the first two of four."""
    monkeypatch.setattr(conv, "MANY_PRODUCTS", 1 if lanes else 1 << 60)
    groups: list[int] = []
    real: Any = F.conv2d

    def seen(*args: Any, **how: Any) -> Any:
        groups.append(how.get("groups", 1))
        return real(*args, **how)

    x, w, b = normal(K, B, 3, 6, 5), normal(K, 2, 3, 3, 3, seed=1), normal(K, 2, seed=2)

    def own(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        first = torch.arange(B).view(-1, 1, 1, 1) < shifted
        return F.conv2d(x, w, padding=1) + b.view(-1, 1, 1) * first

    wanted = gradients(each(own), x, w, b)
    monkeypatch.setattr(F, "conv2d", seen)

    def ours(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return conv2d(x, w, b, 1, shifted)

    got = gradients(vmap(ours), x, w, b)
    assert groups == ([1] * K if lanes else [K])
    torch.testing.assert_close(got, wanted)


def test_a_convolution_of_what_all_clients_share() -> None:
    x, w = normal(B, 3, 6, 5), normal(K, 2, 3, 3, 3, seed=1)

    def ours(w: Tensor) -> Tensor:
        return conv2d(x, w, None, 0, 0)

    got = gradients(vmap(ours), w)
    torch.testing.assert_close(got, gradients(each(lambda w: F.conv2d(x, w)), w))


@pytest.mark.parametrize("threads", [1, 2])
def test_an_lstm(threads: int) -> None:
    x, into = normal(K, B, T, 2), normal(K, 4 * D, 2, seed=1)
    w, b = normal(K, 4 * D, D, seed=2), normal(K, 4 * D, seed=3)

    def own(x: Tensor, into: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return cells(x @ into.T + b, w)

    def shared(w: Tensor, b: Tensor) -> Tensor:  # inputs and a weight that no client trains
        return layer(x[0], into[0], w, b)

    with sharing(threads):
        got = gradients(vmap(layer), x, into, w, b)
        some = gradients(vmap(shared), w, b)
    torch.testing.assert_close(got, gradients(each(own), x, into, w, b))
    wanted = gradients(each(lambda w, b: own(x[0], into[0], w, b)), w, b)
    torch.testing.assert_close(some, wanted)


def test_other_derivatives_take_the_general_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's objective may differentiate within: in forward mode, in reverse mode, twice."""

    def refuse(*_: object) -> Tensor:
        raise AssertionError("this form has no such derivative")

    monkeypatch.setattr(conv._Stacked, "apply", refuse)
    monkeypatch.setattr(_Stacked, "apply", refuse)
    x, w = normal(K, B, 3, 6, 5), normal(K, 2, 3, 3, 3, seed=1)

    def penalty(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda x, w: grad(lambda x: f(x, w).square().sum())(x).square().sum()

    def along(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda x, w: jvp(lambda x: f(x, w), (x,), (x,))[1]

    for kind in (penalty, along):
        ours, own = (
            kind(lambda x, w: conv2d(x, w, None, 1, 0)),
            kind(lambda x, w: F.conv2d(x, w, padding=1)),
        )
        torch.testing.assert_close(gradients(vmap(ours), x, w), gradients(each(own), x, w))
    p, into, v = normal(K, B, T, 2), normal(K, 4 * D, 2, seed=1), normal(K, 4 * D, D, seed=2)
    none = torch.zeros(K, 4 * D, dtype=torch.float64)

    def general(p: Tensor, into: Tensor, v: Tensor, none: Tensor) -> Tensor:
        return along(lambda p, v: layer(p, into, v, none))(p, v)

    def by_hand(p: Tensor, into: Tensor, v: Tensor, none: Tensor) -> Tensor:
        return along(lambda p, v: cells(p @ into.T + none, v))(p, v)

    torch.testing.assert_close(
        gradients(vmap(general), p, into, v, none), gradients(each(by_hand), p, into, v, none)
    )
