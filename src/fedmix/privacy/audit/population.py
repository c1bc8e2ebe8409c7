"""What an attacker knows before looking: how samples of each class are distributed, learnt from
public data.
"""

from dataclasses import dataclass

import numpy as np

from fedmix.core.types import Array

FLOOR = 1e-6  # of a variance: a quarter of a grey level, far above the rounding of float32


@dataclass(frozen=True)
class Population:
    """Samples of class c as a normal distribution around `means[c]` (C, d), with one covariance for
    all classes.

    `basis` (d, d) holds its axes as columns, `variances` (d,) the variance along each. Means and
    axes are float32, since what they are multiplied with is long.
    """

    means: Array
    basis: Array
    variances: Array

    @staticmethod
    def learnt(x: Array, labels: Array, classes: int) -> "Population":
        """From public samples (n, d); a class without any has the mean of all."""
        from sklearn.covariance import ledoit_wolf

        means = np.tile(x.mean(0), (classes, 1))
        for c in np.unique(labels):
            means[c] = x[labels == c].mean(0)
        covariance, _ = ledoit_wolf((x - means[labels]).astype(np.float64), assume_centered=True)
        variances, basis = np.linalg.eigh(covariance)
        return Population(
            means.astype(np.float32), basis.astype(np.float32), np.maximum(variances, FLOOR)
        )

    def off(self, x: Array, y: Array) -> Array:
        """How far inputs are from what their labels (n, C) let expect, along the axes."""
        return np.asarray(
            (x.astype(np.float32) - shares(y).astype(np.float32) @ self.means) @ self.basis
        )


def shares(y: Array) -> Array:
    """Label means (n, C), which clipping shrinks and noise blurs, as shares of the classes."""
    positive = np.maximum(y, 0)
    total = positive.sum(1, keepdims=True)
    return np.where(total > 0, positive / np.where(total > 0, total, 1), 1 / y.shape[1])
