"""Weights that a traced step would round at its start are rounded where the step before writes
them; results stay the same.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from fedmix.training.engines.bf16 import keep_rounded, misrounded
from fedmix.training.engines.compiled import _compare, _Quick, _Wrong


def step(plain: Tensor, turned: Tensor, fixed: Tensor, exact: Tensor, x: Tensor) -> None:
    """Rounds and writes two weights, only rounds one, and only writes one."""
    y = x.bfloat16() @ plain.bfloat16()
    z = (y @ turned.T.bfloat16() + fixed.bfloat16()) * plain.bfloat16().sum()
    plain.copy_(plain - 0.1 * z.float())
    turned.copy_(turned + z.float() * exact)
    exact.copy_(exact * 0.9)


def drawn() -> list[Tensor]:
    rng = torch.Generator().manual_seed(0)
    return [torch.randn(3, 3, generator=rng) for _ in range(5)]


def roundings(graph: torch.fx.Graph) -> int:
    return sum(
        node.target == torch.ops.aten._to_copy.default and node.kwargs["dtype"] == torch.bfloat16
        for node in graph.nodes
    )


def test_the_same_steps_with_rounded_weights_kept() -> None:
    wanted, leaves = drawn(), drawn()
    traced = make_fx(step, tracing_mode="fake")(*leaves)
    before = roundings(traced.graph)
    pairs = keep_rounded(traced, leaves)
    assert [weight is leaf for (_, weight), leaf in zip(pairs, leaves, strict=False)] == [
        True,
        True,
    ]
    for _ in range(3):
        step(*wanted)
        traced(*leaves, *(mine for mine, _ in pairs))
        for one, other in zip(leaves, wanted, strict=True):
            assert torch.equal(one, other)
        for mine, weight in pairs:
            assert mine.dtype == torch.bfloat16
            assert torch.equal(mine, weight.bfloat16())
    traced.graph.eliminate_dead_code()
    assert roundings(traced.graph) == before - 1  # one weight was rounded twice


def test_a_step_that_rounds_nothing_stays_as_it_is() -> None:
    leaves = drawn()[:2]
    traced = make_fx(lambda w, x: w.copy_(w - x @ w), tracing_mode="fake")(*leaves)
    nodes = len(traced.graph.nodes)
    assert keep_rounded(traced, leaves) == []
    assert len(traced.graph.nodes) == nodes


def test_what_is_not_rounded_from_its_weight_is_counted() -> None:
    """Of 256 numbers one was left as it was; one that is not a number does not count, and the pair
    that is worse does.
    """
    weight = torch.arange(1.0, 257).sqrt()
    weight[1] = torch.nan
    mine, stale = weight.bfloat16(), weight.bfloat16()
    stale[0] = 2
    assert misrounded([]) == misrounded([(mine, weight)]) == 0
    assert misrounded([(stale, weight), (mine, weight)]) == 1 / 256
    unused: Any = None
    with pytest.raises(_Wrong):
        _compare(unused, unused, [], [(mine, weight + 1)])


def test_steps_begin_with_the_weights_of_clients_that_have_started_since() -> None:
    mine, weight, seen = (
        torch.zeros(2, dtype=torch.bfloat16),
        torch.tensor([1.0, 2.0]),
        list[list[float]](),
    )
    quick = _Quick()
    quick.fast, quick.rounded = lambda: seen.append(mine.tolist()), [(mine, weight)]
    quick(1)
    weight += 2
    quick(2)
    assert seen == [[1, 2], [3, 4], [3, 4]]
