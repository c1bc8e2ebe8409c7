"""What label means tell, and whose means they are."""

from fractions import Fraction

import numpy as np
import pytest

from fedmix import Exchange, data
from fedmix.data.federated import FederatedData
from fedmix.privacy.audit import labels, linking
from fedmix.privacy.audit.population import Population
from fedmix.privacy.audit.scene import View, averaged, stage


def test_counts_and_sizes_of_every_small_mean() -> None:
    """All counts of two classes up to M = 40, as float32 means; the size found is M over the
    counts' greatest divisor.
    """
    for size in range(1, 41):
        for first in range(size + 1):
            truth = np.array([first, size - first, 0])
            y = (truth / size).astype(np.float32).astype(np.float64)
            assert labels.counts(y, size).tolist() == truth.tolist()
            assert labels.infer_size(y) == Fraction(first, size).denominator


def test_counts_add_up_whatever_the_noise() -> None:
    rng = np.random.default_rng(0)
    for y in rng.normal(size=(50, 5)):
        found = labels.counts(y, 7)
        assert found.sum() == 7
        assert found.min() >= 0


def test_all_counts_are_read_unless_labels_carry_noise(digits: FederatedData) -> None:
    rng = np.random.default_rng(0)
    read = labels.attack(stage(digits, Exchange(m=10, noise=5.0), 0), rng)
    assert read.known == 1.0
    assert 0 < read.inferred < 1
    assert labels.attack(stage(digits, Exchange(m=10, noise=5.0, clip=4.0), 0), rng).known < 0.05


def test_label_scores_by_hand() -> None:
    """The multinomial without noise: 3 of class 0, 1 of class 1; shares (¾, ¼) and (½, ½)."""
    of_clients = np.array([[0.75, 0.25], [0.5, 0.5]])
    exact = View(
        np.zeros((1, 1)), np.array([[0.75, 0.25]]), np.array([4]), np.zeros(1), np.zeros(1)
    )
    np.testing.assert_allclose(
        linking.label_scores(exact, of_clients)[0],
        [3 * np.log(0.75) + np.log(0.25), 4 * np.log(0.5)],
    )
    noised = exact._replace(label_noise=np.array([0.5]))
    np.testing.assert_allclose(
        linking.label_scores(noised, of_clients)[0], [0, -(2 * 0.25**2) / (2 * (0.25 + 0.25))]
    )


def test_clients_of_one_class_each_are_told_apart_by_labels(population: Population) -> None:
    ten = data.digits(10, classes_per_client=1)
    found = linking.attack(stage(ten, Exchange(m=5), 0), population, np.random.default_rng(0))
    assert found.labels == 1.0
    assert found.chance == pytest.approx(0.1)


def test_known_samples_link_where_labels_do_not(population: Population) -> None:
    """Equal label shares tell nothing; a client's only mean holds all its samples, also those that
    are known.
    """
    alike = data.digits(10, partition="iid")
    found = linking.attack(stage(alike, Exchange(), 0), population, np.random.default_rng(0))
    assert found.samples > 3 * found.chance


def test_averaging_and_noise_on_labels_hide_owners(
    digits: FederatedData, population: Population
) -> None:
    scene, rng = stage(digits, Exchange(m=20), 0), np.random.default_rng(0)
    alone, mixed = (linking.attack(s, population, rng) for s in (scene, averaged(scene, 8)))
    assert alone.labels - alone.chance > mixed.labels - mixed.chance
    hidden = linking.attack(stage(digits, Exchange(m=20, noise=30.0, clip=4.0), 0), population, rng)
    assert (
        max(hidden.labels, hidden.samples) < 0.3
    )  # 60 entries of 10 clients by chance: 0.1 ± 0.04
