"""Which matrix products of a compiled step are a library's, and which the compiler writes itself.

The gradient of a full layer's weights, from few samples, is a product with a short sum and a large result. A library writes it to
memory, where the update reads it again; written by the compiler it is computed inside the update, which on a GPU saves two
passes over the weights. Products with long sums are the library's, which is faster at them.
"""

import torch
from torch import Tensor
from torch.fx import Graph

from fedmix.kernels.operators import operator

FEW = 32  # terms of a sum up to which it is short


def _product(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


_product_op = operator(_product, _product)


def leave_long_products(graph: Graph) -> None:
    """Have products with long sums called as they are."""
    products = (torch.ops.aten.bmm.default, torch.ops.aten.mm.default)
    for node in graph.nodes:
        if node.target in products and node.args[0].meta["val"].shape[-1] > FEW:
            node.target = _product_op
