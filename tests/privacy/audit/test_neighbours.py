"""The game of ε on real releases: closed forms for a known pair, and never above what is proven."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from fedmix import Exchange
from fedmix.data import FederatedData, from_arrays
from fedmix.privacy import guarantee
from fedmix.privacy.audit import neighbours
from fedmix.privacy.audit.scene import stage
from tests.privacy.audit.test_rates import epsilon_of

DELTA = 1e-5


def pair(
    ours: list[float], theirs: list[float], group: int, labels: tuple[int, int] = (0, 1)
) -> FederatedData:
    """A client whose samples are all `ours`, of which one may be `theirs`; another client to keep
    it company.
    """
    x, y = np.array([ours] * (2 * group), np.float32), np.full(2 * group, labels[0])
    clients = [np.arange(group), np.arange(group, 2 * group)]
    return from_arrays(x, y, clients, test=(np.array([theirs]), np.array([labels[1]])), classes=2)


@pytest.mark.parametrize(("group", "clip"), [(1, 10.0), (4, 10.0), (4, 1.0)])
def test_auc_is_that_of_two_normals_as_far_apart_as_the_means(group: int, clip: float) -> None:
    """The distance by hand: samples scaled to the bound with their labels, over M.

    AUC = Φ(Δ/(σ√2)).
    """
    ours, theirs = (
        np.array([3.0, 4.0, 1.0, 0.0]),
        np.array([0.0, -2.0, 0.0, 1.0]),
    )  # two inputs, then the one-hot label
    moved = [v * min(1, clip / np.linalg.norm(v)) for v in (ours, theirs)]
    apart = np.linalg.norm(moved[0] - moved[1]) / group
    sigma = float(apart / 1.2)
    scene = stage(pair([3.0, 4.0], [0.0, -2.0], group), Exchange(clip=clip, noise=sigma), 0)
    inside, outside = neighbours.attack(scene, np.array([0]), 20_000, np.random.default_rng(0))
    found = neighbours.summary(inside, outside, DELTA)
    assert found.rates.auc == pytest.approx(norm.cdf(1.2 / math.sqrt(2)), abs=0.006)
    assert found.epsilon < epsilon_of(1.2)
    np.testing.assert_allclose(
        [inside.mean(), outside.mean()], [1.2**2 / 2, -(1.2**2) / 2], atol=0.05
    )  # KL of two normals


@pytest.mark.parametrize("epsilon_wanted", [1.0, 4.0])
def test_never_above_the_proven_epsilon_even_for_the_worst_pair(epsilon_wanted: float) -> None:
    """Opposite samples at the bound, in a group of 5: nothing is further apart, so what is proven
    is nearly reached.
    """
    clip, group = 2.0, 5
    side = math.sqrt(clip**2 - 1)
    from fedmix.privacy import calibrated

    how = calibrated(Exchange(clip=clip), epsilon_wanted, group, DELTA)
    scene = stage(pair([side, 0.0], [-side, 0.0], group), how, 0)
    inside, outside = neighbours.attack(scene, np.array([0]), 30_000, np.random.default_rng(1))
    shown, proven = (
        neighbours.summary(inside, outside, DELTA).epsilon,
        guarantee(how, group, DELTA).epsilon,
    )
    assert proven == pytest.approx(epsilon_wanted, rel=0.01)
    assert 0.25 * proven < shown < proven


@pytest.mark.parametrize(
    ("how", "certain"),
    [
        (Exchange(), True),  # no noise: who knows the rest subtracts it
        (Exchange(noise=100.0), True),  # no bound, so none on labels, and they differ
        (Exchange(noise=100.0, clip=10.0), False),
    ],
)
def test_averaging_alone_and_labels_without_noise_hide_nothing(
    how: Exchange, certain: bool
) -> None:
    scene = stage(pair([3.0, 4.0], [3.0, 4.5], 50), how, 0)
    found = neighbours.summary(
        *neighbours.attack(scene, np.array([0]), 2000, np.random.default_rng(0)), DELTA
    )
    assert (found.rates.auc == 1.0) is certain
    if not certain:
        assert found.rates.auc == pytest.approx(0.5, abs=0.03)
