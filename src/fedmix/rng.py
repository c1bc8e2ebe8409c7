"""Every random number of a run comes from here, from streams keyed by (seed, purpose, round, client).

Streams do not depend on each other: to draw more for one purpose shifts nothing elsewhere, a run can go on at any round, and
every engine sees the same draws. Dropout masks are not stored: they are an integer hash of (key, site, position), computed
where the data is, and the same on every device, alone or vectorised.
"""

import math
import zlib

import numpy as np
import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_GOLDEN = 0x1E3779B1


def stream(seed: int, purpose: str, *where: int) -> np.random.Generator:
    """A generator of its own for one purpose at one place.

    >>> a, b = stream(0, "batches", 3, 7), stream(0, "batches", 3, 7)
    >>> bool(a.integers(100) == b.integers(100))
    True
    """
    entropy = [seed, zlib.crc32(purpose.encode()), *where]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy)))


def hash32(value: Tensor) -> Tensor:
    """A well mixed 32-bit integer from an integer below 2^32 (int64 tensors; no product exceeds 2^63)."""
    value = (value ^ (value >> 16)) * 0x21F0AAAD & _MASK
    value = (value ^ (value >> 15)) * 0x735A2D97 & _MASK
    return value ^ (value >> 15)


def step_keys(seed: int, round_: int, client: int, steps: int) -> np.ndarray:
    """The dropout key of each local step of a client, integers below 2^32."""
    return stream(seed, "dropout", round_, client).integers(0, 2**32, steps, dtype=np.int64)


def keep_mask(key: Tensor, site: int, shape: tuple[int, ...], drop: float) -> Tensor:
    """True where an element survives dropout at rate `drop`; `site` tells the dropout layers of a model apart."""
    count = math.prod(shape)
    position = torch.arange(count, device=key.device)
    seeded = hash32((key + site * _GOLDEN) & _MASK)
    return (hash32(seeded ^ hash32(position)) >= round(drop * 2**32)).reshape(shape)
