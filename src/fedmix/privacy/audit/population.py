"""What an attacker knows beforehand: the distribution of each class, learnt from public data."""

from dataclasses import dataclass

import numpy as np

from fedmix.core.types import Array

FLOOR = 1e-6  # least variance: a quarter of a grey level, far above rounding of float32


@dataclass(frozen=True)
class Population:
    """Samples of class c as a normal distribution around `means[c]`, with a common covariance.

    `means` is (C, d). `basis` (d, d) holds the axes of the covariance as columns, `variances` (d,)
    the variance along each. Means and axes are float32, to save time in long products.
    """

    means: Array
    basis: Array
    variances: Array

    @staticmethod
    def learnt(x: Array, labels: Array, classes: int) -> "Population":
        """Learn it from public samples (n, d); a class without any gets the mean of all."""
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
        """Distance of inputs from what their labels (n, C) let expect, along the axes."""
        return np.asarray(
            (x.astype(np.float32) - shares(y).astype(np.float32) @ self.means) @ self.basis
        )


def shares(y: Array) -> Array:
    """Turn label means (n, C), shrunk by clipping and blurred by noise, into class proportions."""
    positive = np.maximum(y, 0)
    total = positive.sum(1, keepdims=True)
    return np.where(total > 0, positive / np.where(total > 0, total, 1), 1 / y.shape[1])
