"""Streams, dropout masks, and that a seed fixes a run to the bit, from one process to the next."""

import json
import math
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.func import vmap

import fedmix
from fedmix.core.rng import SecretNoise, hash32, keep_mask, step_keys, stream, streams

Array = np.ndarray[Any, Any]


def mask(key: int, site: int, shape: tuple[int, ...], drop: float) -> Tensor:
    return keep_mask(torch.tensor(key), site, shape, drop)


# Streams


def test_streams_do_not_depend_on_each_other() -> None:
    alone = stream(5, "batches", 1, 2).random(4)
    stream(5, "means", 1, 2).random(1000)
    np.testing.assert_array_equal(stream(5, "batches", 1, 2).random(4), alone)
    others = [
        (6, "batches", 1, 2),
        (5, "means", 1, 2),
        (5, "batches", 2, 2),
        (5, "batches", 1, 3),
        (5, "batches", 2, 1),
    ]
    for seed, purpose, *where in others:
        assert not np.isclose(stream(seed, purpose, *where).random(4), alone).any()


def test_streams_are_uncorrelated() -> None:
    """Neighbouring seeds, rounds and clients: correlations of 10,000 uniforms deviate from 0 by
    0.01.
    """
    keys = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 1)]
    drawn = np.stack([stream(s, "lambda", r, k).random(10_000) for s, r, k in keys])
    assert np.abs(np.corrcoef(drawn) - np.eye(5)).max() < 5 * 0.01


@given(
    st.integers(0, 2**70) | st.sampled_from([0, 2**32 - 1, 2**32, 2**64]),
    st.sampled_from(["batches", "means", "split"]),
    st.lists(
        st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)), min_size=1, max_size=5
    ),
)
def test_many_streams_at_once_are_the_streams_one_by_one(
    seed: int, purpose: str, places: list[tuple[int, int]]
) -> None:
    """`stream` leaves the seeding to numpy, which makes it the reference."""
    rounds, clients = np.array(places).T
    several = streams(seed, purpose, rounds, clients)
    for rng, (round_, client) in zip(several, places, strict=True):
        np.testing.assert_array_equal(
            rng.integers(0, 2**63, 4), stream(seed, purpose, round_, client).integers(0, 2**63, 4)
        )
    for rng, (_, client) in zip(streams(seed, purpose, 7, clients), places, strict=True):
        assert rng.random() == stream(seed, purpose, 7, client).random()
    one_place, five = (
        next(streams(seed, purpose, 3)),
        next(streams(seed, purpose, 3, 1, 2, np.array([4]), 5)),
    )
    assert one_place.random() == stream(seed, purpose, 3).random()
    assert five.random() == stream(seed, purpose, 3, 1, 2, 4, 5).random()
    assert next(streams(np.int64(5), purpose, 1)).random() == stream(5, purpose, 1).random()  # type: ignore[arg-type] # happens


def test_purposes_have_different_numbers() -> None:
    """A purpose enters as a checksum: those in use must not collide."""
    source = Path(fedmix.__file__).parent
    purposes = set()
    for path in source.rglob("*.py"):
        for call in (
            'stream(seed, "',
            'stream(self.seed, "',
            'streams(self.seed, "',
            'each("',
            'crops("',
        ):
            purposes |= {
                part.split('"')[0]
                for part in re.sub(r"\(\s+", "(", path.read_text()).split(call)[1:]
            }
    assert {
        "clients",
        "batches",
        "means",
        "partners",
        "lambda",
        "crops",
        "dropout",
        "split",
        "shuffle",
    } <= purposes
    assert len({zlib.crc32(p.encode()) for p in purposes}) == len(purposes)


def test_step_keys() -> None:
    keys = step_keys(stream(0, "dropout", 1, 2), 1000)
    assert keys.shape == (1000,)
    assert keys.min() >= 0
    assert 2**31 < keys.max() < 2**32  # all 32 bits are used
    assert len(set(keys.tolist())) == 1000  # a pair agrees with 1000²/2^33 = 1e-4
    assert step_keys(stream(0, "dropout", 1, 3), 5).tolist() != keys[:5].tolist()
    assert (
        step_keys(stream(0, "dropout", 1, 2), 5).tolist() == keys[:5].tolist()
    )  # a longer plan begins the same way


# Hash


def test_hash_is_exact_integer_arithmetic() -> None:
    """Equal to Python's unbounded integers: nothing overflows, up to the largest 32-bit value."""

    def by_hand(v: int) -> int:
        v = ((v ^ v >> 16) * 0x21F0AAAD) % 2**32
        v = ((v ^ v >> 15) * 0x735A2D97) % 2**32
        return v ^ v >> 15

    values = [0, 1, 2, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1]
    values += np.random.default_rng(0).integers(0, 2**32, 1000).tolist()
    assert hash32(torch.tensor(values)).tolist() == [by_hand(v) for v in values]


def test_hash_mixes() -> None:
    """Any flipped input bit flips each output bit half the time (4,000 inputs: deviation 0.008)."""
    values = torch.from_numpy(np.random.default_rng(0).integers(0, 2**32, 4000))
    plain = hash32(values)
    for bit in range(32):
        changed = plain ^ hash32(values ^ (1 << bit))
        flipped = torch.stack([(changed >> b & 1).double().mean() for b in range(32)])
        assert float((flipped - 0.5).abs().max()) < 6 * 0.008


# Dropout masks


@pytest.mark.parametrize("drop", [0.1, 0.5, 0.9])
def test_rate(drop: float) -> None:
    n = 200_000
    for key in (0, 1, 2**32 - 1):
        dropped = 1 - float(mask(key, 0, (n,), drop).double().mean())
        assert abs(dropped - drop) < 5 * np.sqrt(drop * (1 - drop) / n)


def test_masks_are_uncorrelated() -> None:
    """Between keys, neighbouring keys, sites, and neighbours in one mask; 100,000 positions deviate
    by 0.0032.
    """
    n = 100_000
    places = [(7, 0), (8, 0), (2**31 + 7, 0), (7, 1), (8, 1), (7, 2)]
    masks = np.stack([mask(key, site, (n,), 0.5).double().numpy() for key, site in places])
    assert np.abs(np.corrcoef(masks) - np.eye(len(places))).max() < 5 / np.sqrt(n)
    for lag in (1, 2, 16, 64, 1024):
        assert abs(np.corrcoef(masks[0][lag:], masks[0][:-lag])[0, 1]) < 5 / np.sqrt(n - lag)


def test_alone_or_vectorised() -> None:
    keys = torch.from_numpy(step_keys(stream(0, "dropout", 0, 0), 6))
    together = vmap(lambda key: keep_mask(key, 3, (7, 2, 5), 0.3))(keys)
    for key, got in zip(keys.tolist(), together, strict=True):
        assert torch.equal(got, mask(key, 3, (7, 2, 5), 0.3))
    assert not torch.equal(together[0], together[1])


def test_a_shorter_batch_sees_the_first_rows() -> None:
    assert torch.equal(mask(99, 1, (7, 4, 3), 0.4), mask(99, 1, (10, 4, 3), 0.4)[:7])


def test_extreme_rates() -> None:
    assert bool(mask(3, 0, (1000,), 0.0).all())
    assert not bool(mask(3, 0, (1000,), 1.0).any())


# From one process to the next

RUN = """
import hashlib, json
from torch import nn
from fedmix import Exchange, Federation, FedMix, LocalMix, Training
from fedmix.models import initialised
from fedmix.training.engines import Sequential, Vectorised
from tests.synthetic import federated

def net():
    layers = nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 10)
    return nn.Sequential(nn.Flatten(), *layers)

def digest(engine, seed, objective):
    exchange = Exchange(m=1, noise=0.1, average=2) if objective.needs.means else None
    training = Training(2, batch_size=5, lr=0.05, momentum=0.9)
    data = federated("digits_cnn", (7, 3, 5))
    federation = Federation(
        initialised(net, seed), data, objective, training,
        exchange=exchange, engine=engine, seed=seed,
    )
    list(federation.run(2))
    total = hashlib.sha256()
    for name, p in sorted(federation.params.items()):
        total.update(name.encode() + p.numpy().tobytes())
    return total.hexdigest()

objectives = (FedMix(0.1), LocalMix(alpha=1.0))
cases = [(e, s, o) for e in (Vectorised(), Sequential()) for s in (0, 1) for o in objectives]
print(json.dumps({f"{e.name} {s} {type(o).__name__}": digest(e, s, o) for e, s, o in cases}))
"""


def test_same_seed_same_weights_in_another_process() -> None:
    root = Path(__file__).parents[2]
    runs = []
    for hash_seed in ("0", "12345"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", RUN],
            env=environment,
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    assert runs[0] == runs[1]
    by_case: dict[str, str] = runs[0]
    assert len(by_case) == 8
    for engine in ("vectorised", "sequential"):
        mine = [digest for case, digest in by_case.items() if case.startswith(engine)]
        assert len(set(mine)) == 4  # two seeds, two algorithms


def test_secret_noise_is_normal_and_never_the_same() -> None:
    """Kolmogorov and Smirnov: the largest gap to Φ is below 1.95/√n with p = 0.001. Halves of it,
    which share radii, and neighbours are uncorrelated, and so are their squares.
    """
    n = 200_001  # odd: of the last pair one number is left over
    one, other = SecretNoise().standard_normal(n), SecretNoise().standard_normal(n)
    ordered = np.sort(one)
    phi = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in ordered])
    assert np.abs(phi - (np.arange(n) + 0.5) / n).max() < 1.95 / math.sqrt(n)
    half = n // 2
    for a, b in ((one[:half], one[half + 1 :]), (one[:-1], one[1:]), (one, other)):
        assert abs(np.corrcoef(a, b)[0, 1]) < 5 / math.sqrt(half)
        assert abs(np.corrcoef(a**2, b**2)[0, 1]) < 5 / math.sqrt(half)
    small = SecretNoise().standard_normal((2, 3), dtype=np.float32)
    assert (small.shape, small.dtype) == ((2, 3), np.float32)
