"""Recovering pictures from means and from refreshes, and how near they are."""

import math
from typing import Any

import numpy as np
import pytest

from fedmix import Exchange, data
from fedmix.data.federated import FederatedData
from fedmix.privacy.audit import differencing, reconstruction
from fedmix.privacy.audit.population import Population
from fedmix.privacy.audit.quality import psnr, ssim
from fedmix.privacy.audit.scene import averaged, stage

Array = np.ndarray[Any, Any]


def test_quality_by_hand() -> None:
    assert psnr(np.zeros(3), np.zeros(3)) == 100
    assert psnr(np.zeros(2), np.array([0.3, 0.4])) == pytest.approx(-10 * math.log10(0.125))
    a, b = np.random.default_rng(0).random((2, 2, 9, 8))
    c1, c2, found = 0.01**2, 0.03**2, []
    for channel in range(2):  # every window by itself
        for i in range(3):
            for j in range(2):
                p, q = (
                    a[channel, i : i + 7, j : j + 7].ravel(),
                    b[channel, i : i + 7, j : j + 7].ravel(),
                )
                ((pp, pq), (_, qq)) = np.cov(p, q)
                top = (2 * p.mean() * q.mean() + c1) * (2 * pq + c2)
                found.append(top / ((p.mean() ** 2 + q.mean() ** 2 + c1) * (pp + qq + c2)))
    assert ssim(a, b) == pytest.approx(np.mean(found))


def test_blind_guess_is_the_mean_given_the_release() -> None:
    """For z, and e = (z + z')/2 + noise, all normal: E[z | e] = c + cov(z, e) var(e)⁻¹ (e - c),
    here in two dimensions.
    """
    v, centre, sigma = np.array([[2.0, 0.6], [0.6, 1.0]]), np.array([1.0, -1.0]), 0.5
    variances, basis = np.linalg.eigh(v)
    population = Population(centre[None], basis, variances)
    e = np.array([0.3, 0.7])
    expected = centre + (v / 2) @ np.linalg.inv(v / 2 + sigma**2 * np.eye(2)) @ (e - centre)
    found = reconstruction.blind(e, np.ones(1), 0, 2, sigma, population)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_suspects_in_a_mean_are_named_while_they_are_fewer_than_pixels() -> None:
    rng = np.random.default_rng(0)
    suspects, labels = rng.random((50, 60)), np.eye(2)[rng.integers(2, size=50)]
    inside = np.arange(12) * 4
    weight = reconstruction.parts(
        suspects[inside].mean(0), labels[inside].mean(0), suspects, labels
    )
    np.testing.assert_allclose(weight, np.isin(np.arange(50), inside) / 12, atol=1e-4)
    doubled = reconstruction.parts(
        suspects[0], labels[0], np.tile(suspects, (3, 1)), np.tile(labels, (3, 1))
    )
    np.testing.assert_allclose(
        doubled[::50], 1 / 3, atol=1e-3
    )  # who looks the same shares the blame


def test_pictures_come_back_from_small_means_only(
    digits: FederatedData, population: Population
) -> None:
    rng, found = np.random.default_rng(0), {}
    for m, noise in ((1, 0.0), (5, 0.0), (5, 50.0)):
        scene = stage(digits, Exchange(m=m, noise=noise), 0)
        attempts = [
            reconstruction.attempt(scene, release, np.arange(200), population, rng)
            for release in range(6)
        ]
        found[m, noise] = reconstruction.summary(attempts, (1, 8, 8))
    assert found[1, 0.0].blind.psnr > 60
    assert found[1, 0.0].identified == found[5, 0.0].identified == 1.0
    assert found[5, 50.0].identified < 0.5
    assert found[5, 50.0].blind.psnr == pytest.approx(found[5, 50.0].unseen.psnr, abs=0.5)
    assert found[5, 0.0].chance == pytest.approx(
        5 / 45, abs=0.06
    )  # about 40 of 200 test digits have one of two classes


def attacked(scene: Any, wait: float, population: Population) -> differencing.Differencing:
    changes = differencing.attack(scene, wait, 6, population, np.random.default_rng(0))
    changed = differencing.clients_needed(scene.data, wait)
    return differencing.summary(changes, scene.how.average, wait, changed)


@pytest.mark.parametrize(("wait", "clients"), [(0.0, 1), (0.07, 7), (0.071, 8), (1.0, 100)])
def test_no_more_clients_change_than_must(wait: float, clients: int) -> None:
    """Seven of a hundred are the share 0.07, though 100 * 0.07 is 7.000000000000001."""
    assert differencing.clients_needed(data.digits(100, partition="iid"), wait) == clients


@pytest.mark.parametrize("m", [10, "all"])
def test_a_replaced_sample_is_the_difference_of_two_sums(
    digits: FederatedData, population: Population, m: Any
) -> None:
    alone = attacked(stage(digits, Exchange(m=m), 0), 0.0, population)
    assert alone.changed == 1
    assert min(alone.server, alone.client) > 60  # but for float32
    assert alone.unseen < 15
    hidden = attacked(stage(digits, Exchange(m=m, noise=5.0), 0), 0.0, population)
    assert max(hidden.server, hidden.client) < hidden.unseen + 1


def test_waiting_helps_with_averaging_and_against_clients_only(
    digits: FederatedData, population: Population
) -> None:
    scene = stage(digits, Exchange(), 0)
    waiting, both = (attacked(s, 0.5, population) for s in (scene, averaged(scene, 2)))
    assert waiting.changed == both.changed == 5
    assert min(waiting.server, waiting.client, both.server) > 60
    assert both.client < 20


def test_a_difference_freed_of_noise_by_hand() -> None:
    """One change among k of variance 2v each, noise s: the factor on its sum is 2v/(2vk + s)."""
    population = Population(np.zeros((1, 2)), np.eye(2), np.array([1.0, 3.0]))
    np.testing.assert_allclose(
        differencing.freed(np.ones(2), 4.0, 2, population), [2 / (4 + 4), 6 / (12 + 4)]
    )
