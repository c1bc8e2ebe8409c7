"""Initial weights from a seed."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from fedmix.core.errors import BadInput, described
from fedmix.core.rng import stream
from fedmix.core.validation import instance

Initialisation: TypeAlias = Literal["he", "he-conv", "torch"]


def initialised(build: Callable[[], nn.Module], seed: int, how: Initialisation = "he") -> nn.Module:
    """Build a module whose weights depend on `seed` alone, not on PyTorch's global generator.

    What `build` sets itself stays, in a constructor or afterwards: only layers that still have
    PyTorch's own first weights are drawn again.

    Args:
        build: Function that makes the module, such as its class.
        seed: Seed of the weights.
        how: How such layers begin. "torch" keeps PyTorch's weights. "he" (He et al. 2015) draws
            convolutions and linear layers from N(0, 2 / fan_in), with zero bias: without batch
            norm, PyTorch's default shrinks the signal by more than half in every layer. "he-conv"
            draws convolutions only, so that outputs start small: with momentum, first steps from
            "he" can be too large.

    Raises:
        BadInput: `how` is unknown, or `build` is no function that makes a module.

    >>> def build():
    ...     net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    ...     nn.init.constant_(net[1].weight, 0.5)
    ...     return net
    >>> initialised(build, seed=0)[1].weight.tolist()
    [[0.5, 0.5, 0.5]]
    """
    if how not in get_args(Initialisation):
        raise BadInput(
            f"initialisation {how!r} is unknown; choose one of "
            f"{', '.join(get_args(Initialisation))}"
        )
    if not callable(build) or isinstance(build, nn.Module):
        raise BadInput(
            f"`build` is {described(build)}; give a function that makes the module, such as its "
            "class"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(stream(seed, "initialise").integers(2**62)))
        with _first_weights() as first:
            module = instance("build()", build(), nn.Module, "let it return the module")
        redrawn = {"he": (nn.Conv2d, nn.Linear), "he-conv": (nn.Conv2d,), "torch": ()}[how]
        for part in module.modules():
            if isinstance(part, redrawn) and any(_has(part, one) for one in first):
                fan_in = part.weight[0].numel()
                nn.init.normal_(part.weight, 0.0, math.sqrt(2 / fan_in))
                if part.bias is not None:
                    nn.init.zeros_(part.bias)
    return module


@contextmanager
def _first_weights() -> Iterator[list[Mapping[str, Tensor]]]:
    """Note the weights that PyTorch gives to the layers that are made meanwhile.

    They are not noted by layer, since `group_norm` and others make copies.
    """
    first: list[Mapping[str, Tensor]] = []
    kinds: tuple[Any, ...] = (nn.Linear, nn.modules.conv._ConvNd)
    usual = [kind.reset_parameters for kind in kinds]

    def noting(reset: Callable[[nn.Module], None]) -> Callable[[nn.Module], None]:
        def noted(layer: nn.Module) -> None:
            reset(layer)
            first.append({name: p.detach().clone() for name, p in layer.named_parameters()})

        return noted

    try:
        for kind, reset in zip(kinds, usual, strict=True):
            kind.reset_parameters = noting(reset)
        yield first
    finally:
        for kind, reset in zip(kinds, usual, strict=True):
            kind.reset_parameters = reset


def _has(layer: nn.Module, weights: Mapping[str, Tensor]) -> bool:
    now = dict(layer.named_parameters())
    return now.keys() == weights.keys() and all(
        torch.equal(p, weights[name].to(p.device)) for name, p in now.items()
    )
