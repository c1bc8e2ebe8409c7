"""Attack on labels: a mean of one-hot labels gives the number of samples of each class."""

from typing import NamedTuple

import numpy as np

from fedmix.core.types import Array
from fedmix.privacy.audit.scene import Scene

ROUNDING = 1e-4  # a float32 share times M <= LARGEST is at least so near to an integer
LARGEST = 1000
MEANS = 1000  # most means that are attacked


class Labels(NamedTuple):
    """Shares of the means whose label counts were found exactly, with M known and inferred."""

    known: float
    inferred: float
    means: int


def counts(y: Array, size: int) -> Array:
    """The counts (C,) of a label mean: the nearest whole numbers that add up to `size`.

    >>> counts(np.array([0.25, 0.75]), 4).tolist()
    [1, 3]
    """
    scaled = np.maximum(y, 0)
    scaled = size * scaled / scaled.sum() if scaled.sum() > 0 else np.full(len(y), size / len(y))
    whole = np.floor(scaled)
    # the largest remainders
    rest = np.argsort(whole - scaled, kind="stable")[: size - int(whole.sum())]
    whole[rest] += 1
    return np.asarray(whole.astype(np.int64))


def infer_size(y: Array) -> int | None:
    """The smallest M for which all of M·y are whole numbers; None if there is none.

    It is the true M, unless all counts share a divisor.

    >>> infer_size(np.array([0.25, 0.75])), infer_size(np.array([0.5, 0.5]))
    (4, 2)
    """
    sizes = np.arange(1, LARGEST + 1)
    scaled = sizes[:, None] * y
    whole = np.abs(scaled - np.rint(scaled)).max(1) < ROUNDING
    return int(sizes[whole.argmax()]) if whole.any() else None


def attack(scene: Scene, rng: np.random.Generator) -> Labels:
    """Read the label counts of released means."""
    chosen = rng.permutation(len(scene.groups))[:MEANS]
    known, inferred = [], []
    for release in chosen.tolist():
        y, rows = scene.uploads.y[release], scene.groups[release]
        truth = np.bincount(scene.data.y[rows].astype(np.int64), minlength=scene.data.outputs)
        size = infer_size(y)
        known.append(bool((counts(y, len(rows)) == truth).all()))
        inferred.append(size is not None and bool((counts(y, size) == truth).all()))
    return Labels(float(np.mean(known)), float(np.mean(inferred)), len(chosen))
