"""AUC, rates and the lower bound on ε, against closed forms of two normal distributions."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from fedmix.privacy.audit.grid import INTERVALS, Grid, Noise
from fedmix.privacy.audit.rates import (
    CONFIDENCE,
    epsilon_at_least,
    false_alarms_at_most,
    most_to_show,
    rates,
)

DELTA = 1e-5


def epsilon_of(mu: float, delta: float = DELTA) -> float:
    """ε of two unit normals that far apart: Balle and Wang (2018), Theorem 8, solved for ε."""

    def excess(epsilon: float) -> float:
        inside, outside = norm.cdf(mu / 2 - epsilon / mu), norm.cdf(-mu / 2 - epsilon / mu)
        return float(inside - math.exp(epsilon) * outside - delta)

    return float(brentq(excess, 0, 200))


def test_rates_of_two_normals() -> None:
    rng, mu, n = np.random.default_rng(0), 2.0, 50_000
    found = rates(mu + rng.standard_normal(n), rng.standard_normal(n))
    assert found.auc == pytest.approx(norm.cdf(mu / math.sqrt(2)), abs=0.005)
    assert found.tpr == pytest.approx(norm.sf(norm.ppf(0.999) - mu), abs=0.03)
    assert found.auc_low < norm.cdf(mu / math.sqrt(2)) < found.auc_high
    # The deviation of an AUC of normal scores by Monte Carlo, 150 pairs of samples of 200, against
    # the interval's.
    aucs = [rates(mu + rng.standard_normal(200), rng.standard_normal(200)) for _ in range(150)]
    half = np.mean([(r.auc_high - r.auc_low) / 2 for r in aucs])
    assert half == pytest.approx(1.96 * np.std([r.auc for r in aucs]), rel=0.25)


def test_a_false_alarm_in_a_thousand_is_none_among_few() -> None:
    others = np.arange(999.0)
    assert (
        rates(np.array([998.0, 998.5]), others).tpr == 0.5
    )  # a tie with the highest of the others is not above it
    assert (
        rates(np.array([998.0, 998.5]), np.arange(1000.0)).tpr == 0.5
    )  # 998 equals the second highest, 998.5 is above it


def test_epsilon_from_counts_by_hand() -> None:
    """All of n calls right: by Clopper and Pearson TPR ≥ 0.025^(1/n) and FPR ≤ 1 - 0.025^(1/n)."""
    n = 500
    limit = 0.025 ** (1 / n)
    expected = math.log((limit - DELTA) / (1 - limit))
    assert most_to_show(n, DELTA) == pytest.approx(expected)
    assert epsilon_at_least(np.ones(2 * n), np.zeros(2 * n), DELTA) == pytest.approx(expected)
    assert epsilon_at_least(np.zeros(2 * n), np.zeros(2 * n), DELTA) == 0


@pytest.mark.parametrize("mu", [0.5, 1.5])
def test_epsilon_shown_is_below_the_true_one_and_not_far_below(mu: float) -> None:
    rng, true = np.random.default_rng(1), epsilon_of(mu)
    shown = [
        epsilon_at_least(mu + rng.standard_normal(20_000), rng.standard_normal(20_000), DELTA)
        for _ in range(3)
    ]
    assert max(shown) < true
    assert min(shown) > 0.3 * true


def test_scores_that_are_low_for_members_show_epsilon_too() -> None:
    """Randomised response: others say 1 in one of 100 cases, members in half of them; 'not a
    member' is the better test.
    """
    members, others = np.repeat([0.0, 1.0], 2000), np.tile([0.0] * 99 + [1.0], 40)
    rng = np.random.default_rng(2)
    shown = epsilon_at_least(rng.permutation(members), rng.permutation(others), 0.0)
    assert 0.75 * math.log(50) < shown < math.log(50)
    reversed_ = epsilon_at_least(rng.permutation(1 - others), rng.permutation(1 - members), 0.0)
    assert 0.75 * math.log(50) < reversed_ < math.log(50)


def test_intervals_hold_at_once() -> None:
    """30 attackers who only guess: their intervals all hold 0.5 in 95 % of audits; with 95 % each,
    in few (0.95^30 = 21 %).
    """
    rng, count = np.random.default_rng(3), 30

    def all_hold(level: float) -> bool:
        found = [
            rates(rng.standard_normal(200), rng.standard_normal(200), level) for _ in range(count)
        ]
        return all(r.auc_low < 0.5 < r.auc_high for r in found)

    together, alone = (
        np.mean([all_hold(level) for _ in range(20)])
        for level in (1 - (1 - CONFIDENCE) / count, CONFIDENCE)
    )
    assert together > 0.8
    assert alone < 0.5
    grid = Grid(sizes=(1, "all"), noises=(Noise(0.0), Noise(0.1)))
    assert (1 - grid.confidence) * INTERVALS * 4 == pytest.approx(1 - CONFIDENCE)


def test_the_rate_of_false_alarms_by_hand() -> None:
    """None of n mistaken: more than 1 - 0.05^(1/n) would show one in 95 % of the cases."""
    assert false_alarms_at_most(500) == pytest.approx(1 - 0.05 ** (1 / 500))
