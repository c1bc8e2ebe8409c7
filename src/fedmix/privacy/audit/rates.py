"""How well scores tell members from non-members, with confidence intervals."""

from typing import NamedTuple

import numpy as np

from fedmix.core.types import Array

CONFIDENCE = 0.95
FALSE_POSITIVES = 1e-3


class Rates(NamedTuple):
    """AUC, and the true positive rate at a false positive rate of 1 in 1,000, with intervals.

    `others` is the number of non-members: below 1,000, no false positive is allowed.
    """

    auc: float
    auc_low: float
    auc_high: float
    tpr: float
    tpr_low: float
    tpr_high: float
    members: int
    others: int


def rates(members: Array, others: Array, confidence: float = CONFIDENCE) -> Rates:
    """Compute the rates from scores, which are higher for those who seem to be members.

    The interval of the AUC is that of Hanley and McNeil (1982).

    >>> rates(np.array([3.0, 2.0]), np.array([1.0, 2.0])).auc
    0.875
    """
    from scipy.stats import binomtest, norm, rankdata

    a, b = len(members), len(others)
    ranks = rankdata(np.concatenate([members, others]))
    auc = float((ranks[:a].sum() - a * (a + 1) / 2) / (a * b))
    q1, q2 = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    deviation = np.sqrt(
        (auc * (1 - auc) + (a - 1) * (q1 - auc**2) + (b - 1) * (q2 - auc**2)) / (a * b)
    )
    wide = float(norm.ppf((1 + confidence) / 2) * deviation)
    threshold = np.sort(others)[::-1][int(FALSE_POSITIVES * b)]
    found = int((members > threshold).sum())
    interval = binomtest(found, a).proportion_ci(confidence, "exact")
    low, high = max(0.0, auc - wide), min(1.0, auc + wide)
    return Rates(auc, low, high, found / a, float(interval.low), float(interval.high), a, b)


def false_alarms_at_most(others: int, confidence: float = CONFIDENCE) -> float:
    """Upper bound of the true false positive rate, if it is 1 in 1,000 among these `others`."""
    from scipy.stats import beta

    wrong = int(FALSE_POSITIVES * others)
    return float(beta.ppf(confidence, wrong + 1, others - wrong))


def epsilon_at_least(
    members: Array, others: Array, delta: float, confidence: float = CONFIDENCE
) -> float:
    """Lower bound of ε that these scores prove, at that confidence.

    Differential privacy requires TPR ≤ e^ε·FPR + δ of every test, of those for members and of those
    for non-members. The test is chosen on every other score and bounded on the rest
    (Clopper-Pearson limits of both rates), so that the choice costs no confidence.
    """
    chosen = max(
        _tests(members[::2], others[::2]),
        key=lambda test: _bound(*_hits(members[::2], others[::2], *test), delta, confidence),
    )
    return float(_bound(*_hits(members[1::2], others[1::2], *chosen), delta, confidence))


def most_to_show(scores: int, delta: float, confidence: float = CONFIDENCE) -> float:
    """The largest ε that this many scores of each kind can prove, if all are called correctly."""
    return _bound(scores, scores, 0, scores, delta, confidence)


def _tests(members: Array, others: Array) -> list[tuple[float, int]]:
    """Thresholds to try, between scores, in both directions."""
    values = np.concatenate([members, others])
    steps = np.unique(np.quantile(values, np.linspace(0, 1, 201), method="nearest"))
    return [
        (float(threshold), sign) for threshold in (steps[:-1] + steps[1:]) / 2 for sign in (1, -1)
    ] or [(0.0, 1)]


def _hits(members: Array, others: Array, threshold: float, sign: int) -> tuple[int, int, int, int]:
    """True positives, positives, false positives and negatives of a test.

    With sign 1, members are predicted above the threshold; with -1, non-members at or below it.
    """
    if sign > 0:
        return (
            int((members > threshold).sum()),
            len(members),
            int((others > threshold).sum()),
            len(others),
        )
    return (
        int((others <= threshold).sum()),
        len(others),
        int((members <= threshold).sum()),
        len(members),
    )


def _bound(
    right: int, of_right: int, wrong: int, of_wrong: int, delta: float, confidence: float
) -> float:
    from scipy.stats import beta

    outside = (1 - confidence) / 2  # either of the two limits may fail
    low = beta.ppf(outside, right, of_right - right + 1) if right else 0.0
    high = beta.ppf(1 - outside, wrong + 1, of_wrong - wrong) if wrong < of_wrong else 1.0
    return max(0.0, float(np.log((low - delta) / high))) if low > delta else 0.0
