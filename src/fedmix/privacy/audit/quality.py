"""Similarity of two pictures."""

import math

import numpy as np

from fedmix.core.types import Array

EXACT = 100.0  # dB; pictures that are nearer count as equal
WINDOW = 7


def psnr(a: Array, b: Array) -> float:
    """Peak signal-to-noise ratio in dB of pictures in [0, 1]: 10·log10(1 / MSE), at most 100.

    >>> round(psnr(np.zeros(4), np.full(4, 0.1)), 6)
    20.0
    """
    error = float(np.mean((a - b) ** 2))
    return min(EXACT, -10 * math.log10(error)) if error else EXACT


def ssim(a: Array, b: Array) -> float:
    """Mean structural similarity of pictures (C, H, W) in [0, 1], in windows of 7x7.

    See Wang et al. 2004.

    >>> picture = np.arange(64.0).reshape(1, 8, 8) / 64
    >>> ssim(picture, picture)
    1.0
    """
    from numpy.lib.stride_tricks import sliding_window_view

    one, two = (sliding_window_view(p, (WINDOW, WINDOW), axis=(1, 2)) for p in (a, b))
    mean_a, mean_b = one.mean((-2, -1)), two.mean((-2, -1))
    n = WINDOW**2
    var_a, var_b = one.var((-2, -1), ddof=1), two.var((-2, -1), ddof=1)
    both = ((one * two).mean((-2, -1)) - mean_a * mean_b) * n / (n - 1)
    c1, c2 = 0.01**2, 0.03**2
    value = (
        (2 * mean_a * mean_b + c1)
        * (2 * both + c2)
        / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2))
    )
    return float(value.mean())
