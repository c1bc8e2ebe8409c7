"""Initial weights from a seed."""

import math
from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

import torch
from torch import nn

from fedmix.core.errors import BadInput, described
from fedmix.core.rng import stream

Initialisation: TypeAlias = Literal["he", "he-conv", "torch"]


def initialised(build: Callable[[], nn.Module], seed: int, how: Initialisation = "he") -> nn.Module:
    """Build a module whose weights depend on `seed` alone, not on PyTorch's global generator.

    Args:
        build: Function that makes the module, such as its class.
        seed: Seed of the weights.
        how: "torch" keeps each layer's own initialisation. "he" (He et al. 2015) then redraws
            convolutions and linear layers from N(0, 2 / fan_in), with zero bias: without batch
            norm, PyTorch's default shrinks the signal by more than half in every layer. "he-conv"
            redraws convolutions only, so that outputs start small: with momentum, first steps from
            "he" can be too large.

    Raises:
        BadInput: `how` is unknown, or `build` is no function.
    """
    if how not in get_args(Initialisation):
        raise BadInput(
            f"initialisation {how!r} is unknown; choose one of "
            f"{', '.join(get_args(Initialisation))}"
        )
    if not callable(build):
        raise BadInput(
            f"`build` is {described(build)}; give a function that makes the module, such as its "
            "class"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(stream(seed, "initialise").integers(2**62)))
        module = build()
        redrawn = {"he": (nn.Conv2d, nn.Linear), "he-conv": (nn.Conv2d,), "torch": ()}[how]
        for part in module.modules():
            if isinstance(part, redrawn):
                fan_in = part.weight[0].numel()
                nn.init.normal_(part.weight, 0.0, math.sqrt(2 / fan_in))
                if part.bias is not None:
                    nn.init.zeros_(part.bias)
    return module
