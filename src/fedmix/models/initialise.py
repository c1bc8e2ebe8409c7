"""Initial weights from a seed."""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import nn

from fedmix.errors import BadInput
from fedmix.rng import stream


def initialised(build: Callable[[], nn.Module], seed: int, how: Literal["he", "torch"] = "he") -> nn.Module:
    """Build a module whose weights depend on `seed` alone, not on PyTorch's global generator.

    "torch" keeps each layer's own initialisation. "he" (He et al. 2015) then redraws convolutions and full layers from
    N(0, 2 / fan_in) with zero bias: without batch norm, PyTorch's default shrinks the signal by more than half in every layer.
    """
    if how not in ("he", "torch"):
        raise BadInput(f"initialisation {how!r} is unknown; choose 'he' or 'torch'")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(stream(seed, "initialise").integers(2**62)))
        module = build()
        if how == "he":
            for part in module.modules():
                if isinstance(part, nn.Conv2d | nn.Linear):
                    fan_in = part.weight[0].numel()
                    nn.init.normal_(part.weight, 0.0, math.sqrt(2 / fan_in))
                    if part.bias is not None:
                        nn.init.zeros_(part.bias)
    return module
