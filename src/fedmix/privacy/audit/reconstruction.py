"""Reconstruction of pictures from a mean.

Attackers guess blindly, by the nearest public picture, or from a list of suspects.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedmix.core.types import Array
from fedmix.privacy.audit.population import FLOOR, Population
from fedmix.privacy.audit.quality import psnr, ssim
from fedmix.privacy.audit.scene import Scene, samples

DECOYS = 300
LABEL_WEIGHT = 10.0  # weight of a label's share in the fit, relative to a pixel
RIDGE = 1e-3  # on the weights; without it, the fit may not end if suspects look the same


@dataclass(frozen=True)
class Attempt:
    """One mean under attack; pictures are flat, with values in [0, 1].

    `original` is one of the samples in the mean; `blind` and `nearest` are guesses at it. `unseen`
    is a guess without the exchange: the mean of its class. `named` is, of the suspects said to be
    in the mean, the nearest to the original. `identified` is the share of those that are in the
    mean, `chance` the same for suspects named at random.
    """

    original: Array
    mean: Array
    blind: Array
    nearest: Array
    unseen: Array
    named: Array
    identified: float
    chance: float


class Guess(NamedTuple):
    """Similarity of a guess to the original: PSNR in dB and SSIM."""

    psnr: float
    ssim: float


class Reconstruction(NamedTuple):
    """Medians (of the guesses) and means (of the shares) over the attempts."""

    blind: Guess
    nearest: Guess
    unseen: Guess
    identified: float
    chance: float
    attempts: int


def blind(
    mean: Array, y: Array, label: int, size: int, noise: float, population: Population
) -> Array:
    """The best linear guess at a sample of class `label`, from a mean with noise.

    It is the mean of its class, plus what is unusual in the mean, scaled down for noise.
    """
    unusual = population.off(mean[None], y[None])[0]
    expected = population.variances / size
    return np.asarray(
        population.means[label]
        + population.basis @ (unusual * expected / np.maximum(expected + noise**2, FLOOR))
    )


def nearest(picture: Array, others: Array) -> Array:
    """Of the others (n, d), the nearest to a picture."""
    return np.asarray(others[np.argmin(((others - picture) ** 2).sum(1))])


def parts(mean: Array, y: Array, suspects: Array, labels: Array) -> Array:
    """Weight of each suspect (n, d) in the nonnegative mixture that is nearest to the mean."""
    from scipy.optimize import nnls

    q, r = np.linalg.qr(np.concatenate([suspects, LABEL_WEIGHT * labels], 1).T.astype(np.float64))
    target = np.concatenate(
        [q.T @ np.concatenate([mean, LABEL_WEIGHT * y]), np.zeros(len(suspects))]
    )
    return np.asarray(
        nnls(
            np.concatenate([r, RIDGE * np.eye(len(suspects))]), target, maxiter=30 * len(suspects)
        )[0]
    )


def attempt(
    scene: Scene, release: int, public: Array, population: Population, rng: np.random.Generator
) -> Attempt:
    """Attack one released mean; `public` are test rows, which the attacker knows not to be in it.

    The suspects are the samples in the mean and up to 300 others of classes that its label names,
    in random order.
    """
    data, view, rows = scene.data, scene.uploads, scene.groups[release]
    mean, y, size, noise = (
        view.x[release],
        view.y[release],
        int(view.size[release]),
        float(view.noise[release]),
    )
    target = int(rng.integers(len(rows)))
    label = int(data.y[rows[target]])
    possible = y > 0 if not view.label_noise[release] else np.ones(len(y), bool)
    decoys = rng.permutation(public[possible[data.held_out.y[public]]])[:DECOYS]
    suspects = samples(
        data,
        np.concatenate([data.x[rows], data.held_out.x[decoys]]),
        np.concatenate([data.y[rows], data.held_out.y[decoys]]),
        scene.how,
    )
    order = rng.permutation(len(suspects[0]))  # so that ties do not favour the true ones
    named = order[
        np.argsort(-parts(mean, y, *(part[order] for part in suspects)), kind="stable")[: len(rows)]
    ]
    same = public[data.held_out.y[public] == label]
    like = (
        samples(data, data.held_out.x[same], data.held_out.y[same], scene.how)[0]
        if len(same)
        else population.means[[label]]
    )
    return Attempt(
        original=suspects[0][target],
        mean=mean,
        blind=np.clip(blind(mean, y, label, size, noise, population), 0, 1),
        nearest=nearest(mean, like),
        unseen=population.means[label],
        named=nearest(suspects[0][target], suspects[0][named]),
        identified=float((named < len(rows)).mean()),
        chance=len(rows) / len(order),
    )


def summary(attempts: Sequence[Attempt], shape: tuple[int, ...]) -> Reconstruction:
    """Summarise the attempts, for pictures of that shape (C, H, W)."""

    def median(guesses: Sequence[Array]) -> Guess:
        pairs = [
            (a.original.reshape(shape), guess.reshape(shape))
            for a, guess in zip(attempts, guesses, strict=True)
        ]
        return Guess(
            *(float(np.median([measure(*pair) for pair in pairs])) for measure in (psnr, ssim))
        )

    return Reconstruction(
        median([a.blind for a in attempts]),
        median([a.nearest for a in attempts]),
        median([a.unseen for a in attempts]),
        float(np.mean([a.identified for a in attempts])),
        float(np.mean([a.chance for a in attempts])),
        len(attempts),
    )
