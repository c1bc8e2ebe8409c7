"""Differences of runs with the same seeds: the paired t-test, and Holm's correction."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Tested(NamedTuple):
    """The 95 % interval of a mean difference, and p."""

    low: float
    high: float
    p: float


def paired(differences: Sequence[float]) -> Tested | None:
    """Test whether the mean of differences, one for each seed, is zero.

    The test is paired because a seed gives all algorithms the same clients, initial weights, chosen
    clients and batches: what a seed does to both cancels, which Welch's test would count as noise.
    With n seeds there are n - 1 degrees of freedom.

    Returns:
        The result of the t-test; None if there are fewer than two seeds, or all differences are
        equal.
    """
    if len(differences) < 2 or np.ptp(differences) == 0:
        return None
    from scipy import stats

    result = stats.ttest_1samp(differences, 0.0)
    low, high = result.confidence_interval(0.95)
    return Tested(float(low), float(high), float(result.pvalue))


def holm(values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number by Holm's method (1979).

    The smallest of n p-values is multiplied by n, the next by n - 1, and so on. None becomes
    smaller than one before it, nor larger than 1.

    >>> [round(p, 3) for p in holm([0.04, 0.01, 0.03])]  # 2 · 0.03 is more than 1 · 0.04
    [0.06, 0.03, 0.06]
    """
    found, least = list(values), 0.0
    for rank, i in enumerate(sorted(range(len(values)), key=lambda i: values[i])):
        least = max(least, min(1.0, (len(values) - rank) * values[i]))
        found[i] = least
    return found
