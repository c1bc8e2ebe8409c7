"""Weights rounded to bf16, kept from one compiled step to the next.

A step that multiplies in bf16 reads rounded weights. Rounding them at its start takes another pass
over all of them; rounding them where the previous step has just computed them takes only a write.
"""

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

aten = torch.ops.aten
TURNS = (aten.transpose.int, aten.permute.default, aten.t.default)


def keep_rounded(traced: GraphModule, leaves: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Change a step to read rounded weights from further arguments, and to write them.

    Args:
        traced: The step as a graph, which is changed.
        leaves: The step's arguments.

    Returns:
        For each weight that the step rounds, its rounded copy, which is a further argument, and the
        weight.
    """
    graph = traced.graph
    arguments = [node for node in graph.nodes if node.op == "placeholder"]
    writes = {node.args[0]: node for node in graph.nodes if node.target == aten.copy_.default}
    kept = dict[Node, Node]()
    for cast in list(graph.nodes):
        weight = _rounded_by(cast)
        if weight not in writes:
            continue
        if weight not in kept:
            with graph.inserting_after([*arguments, *kept.values()][-1]):
                kept[weight] = graph.placeholder(f"rounded_{len(kept)}")
            with graph.inserting_after(writes[weight]):
                new = graph.call_function(
                    aten._to_copy.default, (writes[weight].args[1],), cast.kwargs
                )
            with graph.inserting_after(new):
                graph.call_function(aten.copy_.default, (kept[weight], new))
        found, seen = kept[weight], cast.args[0]
        if seen is not weight:
            with graph.inserting_before(cast):
                found = graph.call_function(seen.target, (found, *seen.args[1:]))
        found.meta = dict(cast.meta)
        cast.replace_all_uses_with(found)
    traced.recompile()
    of = [leaves[arguments.index(weight)] for weight in kept]
    return [(t.bfloat16(), t) for t in of]


def misrounded(pairs: list[tuple[Tensor, Tensor]]) -> float:
    """Return the largest share of a tensor whose rounded value is wrong, over all pairs.

    Weights that are NaN or infinite do not count. The share is nearly 0 if the step is right, and
    not exactly, since a weight may be computed twice with other rounding.
    """
    return max(
        (
            int(((mine != w.bfloat16()) & w.isfinite()).count_nonzero()) / w.numel()
            for mine, w in pairs
        ),
        default=0.0,
    )


def _rounded_by(node: Node) -> Any:
    """Return the argument that this node rounds to bf16, directly or transposed; else None."""
    if node.target != aten._to_copy.default or node.kwargs != {"dtype": torch.bfloat16}:
        return None
    source: Any = node.args[0]
    return source.args[0] if source.target in TURNS else source
