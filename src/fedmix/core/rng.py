"""All random numbers of a run, from streams keyed by (seed, purpose, round, client).

Streams are independent: drawing more for one purpose shifts nothing elsewhere, a run can continue
at any round, and every engine sees the same draws. Dropout masks are not stored: they are an
integer hash of (key, site, position), computed on the data's device, and equal on every device,
vectorised or not.
"""

import math
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.random.bit_generator import ISeedSequence
from torch import Tensor

from fedmix.core.types import Array
from fedmix.core.validation import whole

_MASK = 0xFFFFFFFF
_GOLDEN = 0x1E3779B1


def stream(seed: int, purpose: str, *where: int) -> np.random.Generator:
    """Make the generator for one purpose at one place.

    Args:
        seed: The seed of the run, an integer of at least 0.
        purpose: What is drawn, such as "batches".
        *where: Integers that name the place, such as round and client.

    >>> a, b = stream(0, "batches", 3, 7), stream(0, "batches", 3, 7)
    >>> bool(a.integers(100) == b.integers(100))
    True
    """
    entropy = [whole("seed", seed, 0), zlib.crc32(purpose.encode()), *where]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy)))


def streams(seed: int, purpose: str, *where: int | Array) -> Iterator[np.random.Generator]:
    """Make the generators of `stream` at many places at once, in a tenth of the time.

    Arguments are those of `stream`; `where` may hold arrays of integers below 2^32, which are
    broadcast against each other.

    >>> several = streams(0, "batches", 3, np.array([7, 8]))
    >>> single = [stream(0, "batches", 3, k) for k in (7, 8)]
    >>> [int(g.integers(100)) for g in several] == [int(g.integers(100)) for g in single]
    True
    """
    seed = int(seed)  # not all versions of numpy give their integers a bit_length
    seed_words = [seed >> shift & _MASK for shift in range(0, max(seed.bit_length(), 1), 32)]
    for state in _seed_states([*seed_words, zlib.crc32(purpose.encode()), *where]):
        # numpy's stub asks for a SeedSequence, numpy itself for an ISeedSequence
        yield np.random.Generator(np.random.PCG64(_Seeded(state)))  # type: ignore[arg-type]


class _Seeded(ISeedSequence):
    """A seed sequence with a precomputed state of four 64-bit words."""

    def __init__(self, state: Array) -> None:
        self.state = state

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Array:
        assert (n_words, dtype) == (len(self.state), self.state.dtype)
        return self.state


def _seed_states(words: list[int | Array]) -> Array:
    """Compute `SeedSequence(words).generate_state(4, np.uint64)` for arrays of words: (places, 4).

    The mixing is M. E. O'Neill's seed_seq_fe with a pool of four words, in arithmetic modulo 2^32.
    """
    by_place = list(np.broadcast_arrays(*[np.atleast_1d(w).astype(np.uint32) for w in words]))
    factor = 0x43B0D7E5

    def hashed(value: Array, multiplier: int) -> Array:
        nonlocal factor
        value = value ^ np.uint32(factor)
        factor = factor * multiplier & _MASK
        return _folded(value * np.uint32(factor))

    def mixed(a: Array, b: Array) -> Array:
        return _folded(a * np.uint32(0xCA01F9DD) - b * np.uint32(0x4973F715))

    pool = [hashed(word, 0x931E8875) for word in [*by_place, np.zeros_like(by_place[0])][:4]]
    for source in range(4):
        for target in range(4):
            if source != target:
                pool[target] = mixed(pool[target], hashed(pool[source], 0x931E8875))
    for word in by_place[4:]:
        pool = [mixed(value, hashed(word, 0x931E8875)) for value in pool]
    factor = 0x8B51F9DD
    state = [hashed(pool[i % 4], 0x58F38DED).astype(np.uint64) for i in range(8)]
    return np.stack(
        [low | high << np.uint64(32) for low, high in zip(state[::2], state[1::2], strict=True)], 1
    )


def _folded(value: Array) -> Array:
    folded: Array = value ^ (value >> np.uint32(16))
    return folded


class SecretNoise:
    """Normal numbers from the operating system's randomness: nobody can draw or compute them again.

    numpy's generators are for simulations: enough of their numbers tell all others (for PCG64,
    Bouillaguet, Martinez, Sauvage 2020), and where data are known, noise can be read off.
    """

    def standard_normal(self, size: int | tuple[int, ...], dtype: Any = np.float64) -> Array:
        """Return numbers like those of `np.random.Generator.standard_normal`, by Box and Muller.

        >>> SecretNoise().standard_normal((2, 3), dtype=np.float32).shape
        (2, 3)
        """
        count = math.prod(np.atleast_1d(size))
        words = np.frombuffer(os.urandom(16 * -(-count // 2)), np.uint64).reshape(2, -1)
        first, second = ((words >> np.uint64(11)) + 0.5) * 2.0**-53  # in (0, 1)
        radius, angle = np.sqrt(-2 * np.log(first)), 2 * np.pi * second
        pairs = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
        drawn: Array = pairs[:count].reshape(size).astype(dtype)
        return drawn


Noise: TypeAlias = np.random.Generator | SecretNoise


def hash32(value: Tensor) -> Tensor:
    """Hash integers below 2^32 to well mixed 32-bit integers.

    Tensors are int64; no product exceeds 2^63.
    """
    value = (value ^ (value >> 16)) * 0x21F0AAAD & _MASK
    value = (value ^ (value >> 15)) * 0x735A2D97 & _MASK
    return value ^ (value >> 15)


def trial(dtype: torch.dtype = torch.float32) -> Callable[[Sequence[int]], Tensor]:
    """Return a function that makes normal numbers of any shape, the same on every call of `trial`.

    They serve to try out a model or a kernel; no run depends on them.
    """
    generator = torch.Generator().manual_seed(0)
    return lambda shape: torch.randn(tuple(shape), generator=generator, dtype=dtype)


def step_keys(rng: np.random.Generator, steps: int) -> Array:
    """Draw the dropout key of each local step of a client, integers below 2^32."""
    return rng.integers(0, 2**32, steps, dtype=np.int64)


def keep_mask(key: Tensor, site: int, shape: tuple[int, ...], drop: float) -> Tensor:
    """Return a mask that is True where an element survives dropout at rate `drop`.

    `key` is the step's dropout key; `site` is the index of the dropout layer in its model.
    """
    count = math.prod(shape)
    position = torch.arange(count, device=key.device)
    seeded = hash32((key + site * _GOLDEN) & _MASK)
    return (hash32(seeded ^ hash32(position)) >= round(drop * 2**32)).reshape(shape)
