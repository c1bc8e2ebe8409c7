"""The truth that the audit keeps beside an exchange is what the exchange really did."""

from typing import Any

import numpy as np
import pytest

from fedmix import Exchange
from fedmix.data.federated import FederatedData
from fedmix.privacy.audit.scene import Scene, averaged, refreshed, samples, stage


def entry_means(scene: Scene) -> list[Any]:
    released = scene.uploads.x.astype(np.float64)
    return [released[scene.entries[entry]].mean(0) for entry in range(len(scene.entries))]


@pytest.mark.parametrize(
    "how",
    [Exchange(m=30), Exchange(m=30, split="class"), Exchange(m=20, clip=2.0), Exchange(cutoff=144)],
)
def test_groups_and_entries_are_those_of_the_exchange(digits: FederatedData, how: Exchange) -> None:
    scene = stage(digits, how, seed=3)
    assert len(scene.uploads.x) == len(scene.groups)
    for i, (x, y) in enumerate(zip(scene.uploads.x, scene.uploads.y, strict=True)):
        rows = scene.groups[i]
        inputs, labels = samples(digits, digits.x[rows], digits.y[rows], how)
        np.testing.assert_allclose(x, inputs.mean(0), atol=1e-5)
        np.testing.assert_allclose(y, labels.mean(0), atol=1e-5)
    for together in (scene, averaged(scene, 3)):
        np.testing.assert_allclose(together.pool.x, entry_means(together), atol=1e-5)
    three = averaged(scene, 3)
    assert three.pool.size.sum() == scene.pool.size.sum() == scene.groups.sizes.sum()
    assert set(scene.owner[three.entries[0]]) == set(three.exchange.pool.owners[0])  # type: ignore[union-attr]


def test_noise_of_a_view_is_what_is_on_its_means(digits: FederatedData) -> None:
    clean, noised = (
        stage(digits, Exchange(m=2, clip=3.0, noise=sigma), 0) for sigma in (1e-9, 0.5)
    )
    for a, b in ((clean, noised), (averaged(clean, 4), averaged(noised, 4))):
        assert np.std(b.pool.x - a.pool.x) == pytest.approx(b.pool.noise[0], rel=0.02)
    assert np.std(noised.uploads.y - clean.uploads.y) == pytest.approx(
        noised.uploads.label_noise[0], rel=0.05
    )


def test_a_refresh_that_waits_is_none(digits: FederatedData) -> None:
    scene = stage(digits, Exchange(), seed=0)
    rows = np.array(digits.clients[2])
    rows[0] = digits.clients[5][0]
    changed = digits.with_clients({2: rows})
    assert refreshed(scene, changed, np.array([2]), wait=0.2) is scene
    after = refreshed(scene, changed, np.array([2]), wait=0.1)
    assert np.flatnonzero((after.uploads.x != scene.uploads.x).any(1)).tolist() == [2]
    np.testing.assert_array_equal(np.sort(after.groups[2]), np.sort(rows))
