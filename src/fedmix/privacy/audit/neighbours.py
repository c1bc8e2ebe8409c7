"""Attack on neighbouring data sets: which of two, that differ in one sample, was released?

The attacker knows both. This is the game that ε is defined by.
"""

from typing import NamedTuple

import numpy as np
import torch

from fedmix.core.types import Array
from fedmix.data.ragged import Ragged
from fedmix.exchange.one_client import Means, average, noised
from fedmix.exchange.settings import Exchange
from fedmix.privacy.audit.rates import CONFIDENCE, Rates, epsilon_at_least, rates
from fedmix.privacy.audit.scene import Scene, samples

EXACT = 1e-6  # used for no noise: the rounding error of a float32 mean
BLOCK = 1000


class Neighbours(NamedTuple):
    """How well the two were told apart, and the lower bound of ε that this proves."""

    rates: Rates
    epsilon: float


def summary(
    inside: Array, outside: Array, delta: float, confidence: float = CONFIDENCE
) -> Neighbours:
    """Summarise scores of releases with the sample and without it, of any number of pairs."""
    return Neighbours(
        rates(inside, outside, confidence), epsilon_at_least(inside, outside, delta, confidence)
    )


def attack(
    scene: Scene, others: Array, trials: int, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Release the first mean of `scene` many times, with a sample and with another in its place.

    The other sample is one of the test rows `others`; the pair that moves the mean furthest is
    chosen. Returns the scores of both kinds of releases.
    """
    data, how, rows = scene.data, scene.how, scene.groups[0]
    position, other = _furthest(scene, rows, others)
    x, y = np.array(data.x[rows]), np.array(data.y[rows])
    inside = _mean(scene, x, y)
    x[position], y[position] = data.held_out.x[other], data.held_out.y[other]
    outside = _mean(scene, x, y)
    return _scores(inside, inside, outside, how, trials, rng), _scores(
        outside, inside, outside, how, trials, rng
    )


def _furthest(scene: Scene, rows: Array, others: Array) -> tuple[int, int]:
    from scipy.spatial.distance import cdist

    data, how = scene.data, scene.how
    ours, theirs = (
        samples(data, data.x[rows], data.y[rows], how),
        samples(data, data.held_out.x[others], data.held_out.y[others], how),
    )
    parts = zip(ours, theirs, how.noises, strict=True)
    apart = sum(cdist(a, b, "sqeuclidean") / max(sigma, EXACT) ** 2 for a, b, sigma in parts)
    position, other = np.unravel_index(np.argmax(apart), (len(rows), len(others)))
    return int(position), int(others[other])


def _mean(scene: Scene, x: Array, y: Array) -> Means:
    return average(
        x, scene.data.labels(y), Ragged.of([np.arange(len(x))]), scene.data.units, scene.how
    )


def _scores(
    world: Means,
    inside: Means,
    outside: Means,
    how: Exchange,
    trials: int,
    rng: np.random.Generator,
) -> Array:
    """Log likelihood ratios of `trials` releases of that mean."""
    found = []
    for start in range(0, trials, BLOCK):
        count = min(BLOCK, trials - start)
        many = Means(*(part.expand(count, *part.shape[1:]) for part in world))
        found.append(sum(
            _log_ratio(seen, a, b, max(sigma, EXACT))
            for seen, a, b, sigma in zip(
                noised(many, [count], how, iter([rng])), inside, outside, how.noises, strict=True
            )
        ))  # fmt: skip
    return np.concatenate(found)


def _log_ratio(
    seen: torch.Tensor, inside: torch.Tensor, outside: torch.Tensor, sigma: float
) -> Array:
    """Normal noise around `inside`, against around `outside`: linear in what is seen."""
    towards = (inside - outside).double().flatten()
    middle = ((inside + outside).double() / 2).flatten()
    return np.asarray(((seen.double().flatten(1) - middle) @ towards / sigma**2).numpy())
