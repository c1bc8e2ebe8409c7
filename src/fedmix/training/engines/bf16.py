"""Weights rounded to bf16, kept from one compiled step to the next.

A step that multiplies in bf16 reads rounded weights. To round them at its start takes another pass
over all of them; to round them where the step before has just computed them takes a write.
"""

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

aten = torch.ops.aten
TURNS = (aten.transpose.int, aten.permute.default, aten.t.default)


def keep_rounded(traced: GraphModule, leaves: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Have a step take rounded weights as further arguments, and write them: pairs of the rounded
    and what it is rounded from.
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
    """The largest share of a rounded weight that is not its finite weight, rounded: nearly none,
    were one computed twice.
    """
    return max(
        (
            int(((mine != w.bfloat16()) & w.isfinite()).count_nonzero()) / w.numel()
            for mine, w in pairs
        ),
        default=0.0,
    )


def _rounded_by(node: Node) -> Any:
    """The argument of the step that this rounds to bf16, as it is or transposed."""
    if node.target != aten._to_copy.default or node.kwargs != {"dtype": torch.bfloat16}:
        return None
    source: Any = node.args[0]
    return source.args[0] if source.target in TURNS else source
