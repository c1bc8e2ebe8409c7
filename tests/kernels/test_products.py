"""Which products of a graph are called as they are: those with long sums, and the same numbers come
out.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from fedmix.kernels.products import FEW, leave_long_products
from tests.kernels.derivatives import normal

KINDS: dict[str, tuple[Callable[..., Tensor], tuple[int, ...]]] = {
    "mm": (lambda c, a, b: c + a @ b, ()),
    "bmm": (lambda c, a, b: c + a @ b, (2,)),
    "addmm": (torch.addmm, ()),
    "baddbmm": (torch.baddbmm, (2,)),
}


@pytest.mark.parametrize("terms", [FEW, FEW + 1])
@pytest.mark.parametrize("kind", KINDS)
def test_long_ones_are_called_as_they_are(kind: str, terms: int) -> None:
    function, clients = KINDS[kind]
    args = (
        normal(*clients, 1, 3),
        normal(*clients, 4, terms, seed=1),
        normal(*clients, terms, 3, seed=2),
    )
    traced = make_fx(function, tracing_mode="fake")(*args)
    leave_long_products(traced.graph)
    traced.recompile()
    called = [str(node.target) for node in traced.graph.nodes]
    assert ("fedmix.product.default" in called) == (terms > FEW)
    assert (f"aten.{kind}.default" in called) == (terms <= FEW)
    torch.testing.assert_close(traced(*args), args[0] + args[1] @ args[2])
