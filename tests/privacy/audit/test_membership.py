"""The likelihood ratio against densities of the normal distribution, and what it finds in real
releases.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm

from fedmix import Exchange
from fedmix.data.federated import FederatedData, HeldOut
from fedmix.privacy.audit.membership import Candidates, candidates, log_ratios, scores
from fedmix.privacy.audit.population import Population, shares
from fedmix.privacy.audit.rates import rates
from fedmix.privacy.audit.scene import View, samples, stage


def learnt(federated: FederatedData, public: slice) -> Population:
    x, _ = samples(
        federated, federated.held_out.x[public], federated.held_out.y[public], Exchange()
    )
    return Population.learnt(x, federated.held_out.y[public], 10)


def test_log_ratios_are_those_of_normal_densities() -> None:
    """With covariance V and class mean c: log N(e; c + (z - c)/M, s(V(M-1)/M² + σ²)) - log N(e; c,
    s(V/M + σ²)).

    The mean's own spread s is (e - c)ᵀ(V/M + σ²)⁻¹(e - c)/d.
    """
    rng = np.random.default_rng(0)
    root, centre = rng.normal(size=(3, 3)), rng.normal(size=3)
    v, e, z = root @ root.T, rng.normal(size=(4, 3)), rng.normal(size=(2, 3))
    size, noise = np.array([2, 2, 5, 5]), np.array([0.1, 0.4, 0.1, 0.1])
    variances, basis = np.linalg.eigh(v)
    found = log_ratios((e - centre) @ basis, size, noise, (z - centre) @ basis, variances)
    for i, (m, sigma) in enumerate(zip(size, noise, strict=True)):
        without, within = v / m + sigma**2 * np.eye(3), v * (m - 1) / m**2 + sigma**2 * np.eye(3)
        s = (e[i] - centre) @ np.linalg.inv(without) @ (e[i] - centre) / 3
        for j in range(2):
            apart = multivariate_normal(centre, s * without).logpdf(e[i])
            held = multivariate_normal(centre + (z[j] - centre) / m, s * within).logpdf(e[i])
            assert found[i, j] == pytest.approx(held - apart, rel=1e-6)


def test_what_is_learnt_of_normal_samples() -> None:
    rng = np.random.default_rng(1)
    root = rng.normal(size=(4, 4))
    labels = rng.integers(2, size=20_000)
    x = rng.normal(size=(20_000, 4)) @ root + 5.0 * labels[:, None]
    found = Population.learnt(x, labels, 3)
    np.testing.assert_allclose(found.means[:2], np.array([[0.0] * 4, [5.0] * 4]), atol=0.1)
    np.testing.assert_allclose(found.means[2], x.mean(0), atol=1e-4)  # nobody has class 2
    np.testing.assert_allclose(
        (found.basis * found.variances) @ found.basis.T, root.T @ root, atol=0.25
    )
    np.testing.assert_allclose(
        shares(np.array([[0.2, 0.2], [-1.0, 0.5], [-1.0, -1.0]])),
        [[0.5, 0.5], [0.0, 1.0], [0.5, 0.5]],
    )


def test_auc_of_tracing_in_a_known_population() -> None:
    """With d whitened values and groups of M the statistic's shift is d/M deviations of √(d/M): AUC
    ≈ Φ(√(d/M)/√2).
    """
    rng, d, m, groups = np.random.default_rng(2), 100, 100, 600
    x = rng.standard_normal((groups, m, d))
    population = Population(np.zeros((1, d), np.float32), np.eye(d, dtype=np.float32), np.ones(d))
    view = View(
        x.mean(1), np.ones((groups, 1)), np.full(groups, m), np.zeros(groups), np.zeros(groups)
    )
    tested = np.concatenate([x[:, 0], rng.standard_normal((groups, d))])
    who = np.tile(np.arange(groups), 2)
    suspects = Candidates(tested, np.zeros(2 * groups, int), who, np.arange(2 * groups) < groups)
    found = scores(view, suspects, population, np.arange(groups)).client
    assert rates(found[:groups], found[groups:]).auc == pytest.approx(
        norm.cdf(math.sqrt(d / m) / math.sqrt(2)), abs=0.03
    )


def test_means_of_one_sample_without_noise_give_nearly_everything_away(
    digits: FederatedData,
) -> None:
    scene = stage(digits, Exchange(m=1), seed=0)
    suspects = candidates(scene, np.arange(150), np.random.default_rng(0))
    found = scores(scene.uploads, suspects, learnt(digits, slice(150, None)), scene.owner)
    for score in found:
        told = rates(score[suspects.member], score[~suspects.member])
        assert told.auc > 0.999
        assert told.tpr > 0.99


def test_attackers_lose_with_averaging_and_lose_all_with_noise(digits: FederatedData) -> None:
    population, rng = learnt(digits, slice(150, None)), np.random.default_rng(0)
    aucs = []
    for m, noise in ((2, 0.0), (10, 0.0), (10, 5.0)):
        scene = stage(digits, Exchange(m=m, noise=noise), seed=0)
        suspects = candidates(scene, np.arange(150), rng)
        score = scores(scene.uploads, suspects, population, scene.owner).client
        aucs.append(rates(score[suspects.member], score[~suspects.member]).auc)
    assert aucs[0] > aucs[1] + 0.1
    assert aucs[2] == pytest.approx(0.5, abs=0.09)  # ± 2.5 deviations


def test_suspects_that_are_in_the_data_after_all_are_left_out(digits: FederatedData) -> None:
    doubled = replace(
        digits,
        test=HeldOut(
            np.concatenate([digits.x[:3], digits.held_out.x]),
            np.concatenate([digits.y[:3], digits.held_out.y]),
        ),
    )
    suspects = candidates(stage(doubled, Exchange(m=10), 0), np.arange(6), np.random.default_rng(0))
    assert (~suspects.member).sum() == 3
    held = digits.class_counts()
    assert held is not None
    assert (held[suspects.client, suspects.label] > 0).all()
