"""The full layer as a function: derivatives of all kinds against a plain product."""

import pytest
import torch

from fedmix.kernels.linear import _Linear, linear
from tests.kernels.derivatives import KINDS, compare, normal


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("samples", [1, 5])
def test_linear(samples: int, kind: str) -> None:
    args = normal(3, samples, 4), normal(3, 6, 4, seed=1)
    compare(kind, lambda x, w: _Linear.apply(x, w), lambda x, w: x @ w.T, args)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("shape", [(5, 4), (40, 4), (2, 3, 4), (4,)])
def test_on_a_cpu_it_is_pytorchs(shape: tuple[int, ...]) -> None:
    x, w = normal(*shape), normal(6, 4, seed=1)
    torch.testing.assert_close(linear(x, w), x @ w.T)
