"""What the mean of one-hot labels tells: how many samples of each class are in it, exactly."""

from typing import NamedTuple

import numpy as np

from fedmix.core.types import Array
from fedmix.privacy.audit.scene import Scene

ROUNDING = (
    1e-4  # a float32 share times M is that near to an integer, for any M that the search reaches
)
LARGEST = 1000
MEANS = 1000  # that are tried


class Labels(NamedTuple):
    """Shares of the released means whose label counts were found exactly: with M known, and with M
    found from the label mean.
    """

    known: float
    inferred: float
    means: int


def counts(y: Array, size: int) -> Array:
    """The counts (C,) that a label mean of `size` samples stands for: whole numbers that add up to
    `size`, nearest to it.

    >>> counts(np.array([0.25, 0.75]), 4).tolist()
    [1, 3]
    """
    scaled = np.maximum(y, 0)
    scaled = size * scaled / scaled.sum() if scaled.sum() > 0 else np.full(len(y), size / len(y))
    whole = np.floor(scaled)
    rest = np.argsort(whole - scaled, kind="stable")[
        : size - int(whole.sum())
    ]  # the largest remainders
    whole[rest] += 1
    return np.asarray(whole.astype(np.int64))


def infer_size(y: Array) -> int | None:
    """The smallest M for which all of M·y are whole numbers: M itself, unless all its counts share
    a divisor.

    >>> infer_size(np.array([0.25, 0.75])), infer_size(np.array([0.5, 0.5]))
    (4, 2)
    """
    sizes = np.arange(1, LARGEST + 1)
    scaled = sizes[:, None] * y
    whole = np.abs(scaled - np.rint(scaled)).max(1) < ROUNDING
    return int(sizes[whole.argmax()]) if whole.any() else None


def attack(scene: Scene, rng: np.random.Generator) -> Labels:
    """Read the counts of released means."""
    chosen = rng.permutation(len(scene.groups))[:MEANS]
    known, inferred = [], []
    for release in chosen.tolist():
        y, rows = scene.uploads.y[release], scene.groups[release]
        truth = np.bincount(scene.data.y[rows].astype(np.int64), minlength=scene.data.outputs)
        size = infer_size(y)
        known.append(bool((counts(y, len(rows)) == truth).all()))
        inferred.append(size is not None and bool((counts(y, size) == truth).all()))
    return Labels(float(np.mean(known)), float(np.mean(inferred)), len(chosen))
