"""Which matrix products of a compiled step are a library's, and which the compiler writes itself.

The gradient of a full layer's weights, from few samples, is a product with a short sum and a large
result. A library writes it to memory, where the update reads it again; written by the compiler it
is computed inside the update, which on a GPU saves two passes over the weights. Products with long
sums are the library's, which is faster at them.
"""

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from fedmix.kernels.operators import operator

FEW = 32  # terms of a sum up to which it is short
TILE = {
    "XBLOCK": 64,
    "YBLOCK": 64,
    "ZBLOCK": 1,
    "num_warps": 4,
    "num_stages": 1,
}  # of the result, for a program on a GPU


def _product(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


_product_op = operator(_product, _product)


def leave_long_products(graph: Graph) -> None:
    """Have products with long sums called as they are; what one is added to is added after it."""
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
    """Have the compiler write a product with one tile; by itself it builds 16 kernels of each and
    tries which is fastest.
    """
    from torch._inductor.choices import InductorChoices
    from torch._inductor.codegen.triton import FixedTritonConfig
    from torch._inductor.virtualized import V

    class OneTile(InductorChoices):
        def triton_kernel_kwargs(
            self, kernel_cls: Any, features: Any, groups: Any, kernel_kwargs: Any
        ) -> Any:
            if not any(node.is_native_matmul() for node in features.scheduler_nodes()):
                return kernel_kwargs
            tile = {
                name: size for name, size in TILE.items() if name != "ZBLOCK" or "z" in groups[0]
            }  # one client has no z
            return {**kernel_kwargs, "fixed_config": FixedTritonConfig(tile)}

    context: AbstractContextManager[Any] = V.set_choices_handler(OneTile())
    return context


def _is_long(product: Node) -> bool:
    terms: int = product.args[-1].meta["val"].shape[-2]  # type: ignore[union-attr]  # which is a node
    return terms > FEW
