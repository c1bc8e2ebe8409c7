"""The parts of Flower's older API that secure sums need, with masks that cannot be guessed.

Nothing else in fedmix imports them, and nothing imports this but secure sums.
"""

import hashlib
import inspect
import math
from importlib import import_module
from typing import Any

import flwr
import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from fedmix.core.errors import BadInput
from fedmix.core.types import Array

REPLACED = "pseudo_rand_gen"
ARGUMENTS = ["seed", "num_range", "dimensions_list"]
CLIENT = "flwr.client.mod.secure_aggregation.secaggplus_mod"
SERVER = "flwr.server.workflow.secure_aggregation.secaggplus_workflow"


def masks(seed: bytes, modulus: int, shapes: list[tuple[int, ...]]) -> list[Array]:
    """Return integers in [0, modulus) that cannot be guessed without the seed.

    Args:
        seed: The secret key.
        modulus: A power of two, at most 2^32.
        shapes: The shapes of the arrays to return.
    """
    stream = Cipher(ChaCha20(hashlib.sha256(seed).digest(), bytes(16)), None).encryptor()
    words = (
        np.frombuffer(stream.update(bytes(4 * math.prod(shape))), "<u4").reshape(shape)
        for shape in shapes
    )
    return [word.astype(np.int64) & (modulus - 1) for word in words]


def with_masks(name: str) -> Any:
    """Import a module of Flower, and replace its generator of masks by `masks`.

    Flower reduces every key to 32 bits before it makes a mask of it (flwrlabs/flower#7522), few
    enough to try them all.

    Raises:
        BadInput: This version of Flower has no such module, or another generator in it.
    """
    try:
        module = import_module(name)
    except ImportError:
        raise _other(name) from None
    made = getattr(module, REPLACED, None)
    if made is not masks:
        if not callable(made) or list(inspect.signature(made).parameters) != ARGUMENTS:
            raise _other(name)
        setattr(module, REPLACED, masks)
    return module


def _other(name: str) -> BadInput:
    return BadInput(
        f"exchange.secure replaces {REPLACED}({', '.join(ARGUMENTS)}) in {name}, and Flower "
        f"{flwr.__version__} has no such function there; install a version that fedmix[flower] "
        "allows, or leave exchange.secure out"
    )
