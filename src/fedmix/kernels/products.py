"""Which matrix products of a compiled step use a library, and which the compiler generates.

The gradient of a linear layer's weights, from few samples, is a product with a short sum and a
large result. A library writes it to memory, where the update reads it again. If the compiler
generates it, it is computed inside the update, which saves two passes over the weights on a GPU.
Products with long sums go to the library, which is faster there.
"""

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from fedmix.kernels.operators import operator

FEW = 32  # a sum of up to so many terms is short
# Tile of the result that one program on a GPU computes.
TILE = {"XBLOCK": 64, "YBLOCK": 64, "ZBLOCK": 1, "num_warps": 4, "num_stages": 1}


def _product(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


_product_op = operator(_product, _product)


def leave_long_products(graph: Graph) -> None:
    """Replace products with long sums by calls of the library; additions follow separately."""
    aten = torch.ops.aten
    for node in graph.nodes:
        if node.target in (aten.bmm.default, aten.mm.default) and _is_long(node):
            node.target = _product_op
        elif (
            node.target in (aten.baddbmm.default, aten.addmm.default)
            and _is_long(node)
            and not node.kwargs
        ):
            with graph.inserting_before(node):
                product = graph.call_function(_product_op, node.args[1:])
            product.meta = dict(node.meta)
            node.target, node.args = aten.add.Tensor, (product, node.args[0])


def one_tile() -> AbstractContextManager[Any]:
    """Make the compiler use one tile size per product, instead of building 16 and timing each."""
    from torch._inductor.choices import InductorChoices
    from torch._inductor.codegen.triton import FixedTritonConfig
    from torch._inductor.virtualized import V

    class OneTile(InductorChoices):
        def triton_kernel_kwargs(
            self, kernel_cls: Any, features: Any, groups: Any, kernel_kwargs: Any
        ) -> Any:
            if not any(node.is_native_matmul() for node in features.scheduler_nodes()):
                return kernel_kwargs
            # a product of one client has no z
            tile = {
                name: size for name, size in TILE.items() if name != "ZBLOCK" or "z" in groups[0]
            }
            return {**kernel_kwargs, "fixed_config": FixedTritonConfig(tile)}

    context: AbstractContextManager[Any] = V.set_choices_handler(OneTile())
    return context


def _is_long(product: Node) -> bool:
    terms: int = product.args[-1].meta["val"].shape[-2]  # type: ignore[union-attr]  # a node
    return terms > FEW
