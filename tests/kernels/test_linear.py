"""The full layer as a function: derivatives of all kinds against a plain product."""

import pytest

from fedmix.kernels.linear import _Linear
from tests.kernels.derivatives import KINDS, compare, normal


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(5, 4), (2, 3, 4), (4,)])
def test_linear(shape: tuple[int, ...], kind: str) -> None:
    args = normal(3, *shape), normal(3, 6, 4, seed=1)
    compare(kind, lambda x, w: _Linear.apply(x, w), lambda x, w: x @ w.T, args)  # type: ignore[no-untyped-call]
