"""The draws of a round: each purpose has a stream of its own, and every draw stays in its range."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmix import Training
from fedmix.core.rng import stream
from fedmix.objectives import Needs
from fedmix.training.draws import ClientPlan, choose_clients, draw_plan, draw_plans
from fedmix.training.engines.slots import Stay, arrange

Array = np.ndarray[Any, Any]
TRAINING = Training(clients_per_round=2, epochs=3, batch_size=10)
EVERYTHING = Needs(means="sample", partner="local", alpha=1.0)


def there(array: Array | None) -> Array:
    assert array is not None
    return array


def plan(
    samples: int = 23,
    needs: Needs = EVERYTHING,
    *,
    seed: int = 0,
    round_: int = 0,
    client: int = 0,
    **kwargs: Any,
) -> ClientPlan:
    return draw_plan(seed, round_, client, samples, TRAINING, needs, **kwargs)


# Streams


@pytest.mark.parametrize(
    ("needs", "kwargs"),
    [
        (Needs(means="batch"), {"entries": np.arange(5)}),
        (Needs(means="sample"), {"entries": np.arange(50)}),
        (Needs(partner="local"), {}),
        (Needs(partner="global"), {"everyone": 1000}),
        (Needs(alpha=0.3), {}),
        (EVERYTHING, {"entries": np.array([4, 9]), "pad": 4}),
        (Needs(), {"pad": 4}),
    ],
)
def test_batches_and_keys_do_not_depend_on_the_objective(
    needs: Needs, kwargs: dict[str, Any]
) -> None:
    bare, full = plan(needs=Needs()), plan(needs=needs, **kwargs)
    for name in ("rows", "mask", "keys"):
        np.testing.assert_array_equal(getattr(bare, name), getattr(full, name))


def test_each_purpose_is_drawn_by_itself() -> None:
    """Other entries, margins or needs leave every other draw as it was."""
    full = plan(entries=np.arange(7), pad=4)
    wider = plan(entries=np.arange(7), pad=9)
    np.testing.assert_array_equal(there(full.lam), there(wider.lam))
    np.testing.assert_array_equal(there(full.means), there(wider.means))
    np.testing.assert_array_equal(there(full.partners), there(wider.partners))
    only = plan(needs=Needs(alpha=1.0))
    np.testing.assert_array_equal(there(full.lam), there(only.lam))
    only = plan(needs=Needs(partner="local"), pad=4)
    np.testing.assert_array_equal(there(full.partners), there(only.partners))
    np.testing.assert_array_equal(there(full.partner_crops), there(only.partner_crops))
    np.testing.assert_array_equal(there(full.crops), there(plan(needs=Needs(), pad=4).crops))
    assert not np.array_equal(there(full.crops), there(full.partner_crops))


def test_a_ratio_for_each_sample_is_of_the_same_distribution() -> None:
    """Beta(α, α) has mean ½ and variance 1 / (4(2α + 1)): 1/20 for α = 2."""
    needs = Needs(alpha=2.0, each=True)
    drawn = there(plan(4000, needs).lam)
    assert drawn.shape == (3 * 400, 10)
    assert drawn.dtype == np.float32
    assert (drawn.min() >= 0) & (drawn.max() <= 1)
    assert drawn.mean() == pytest.approx(0.5, abs=4 * math.sqrt(1 / 20 / 12000))
    assert drawn.var() == pytest.approx(1 / 20, rel=0.05)
    several = draw_plans(0, 0, [0, 7], [23, 4000], TRAINING, needs)
    np.testing.assert_array_equal(there(several[0].lam), there(plan(23, needs).lam))
    assert there(several[1].cut(7).lam).shape == (1200, 7)


@pytest.mark.parametrize("other", [{"seed": 1}, {"round_": 1}, {"client": 1}])
def test_seed_round_and_client_each_change_every_draw(other: dict[str, Any]) -> None:
    one = plan(samples=200, entries=np.arange(50), pad=4)
    same = plan(samples=200, entries=np.arange(50), pad=4)
    two = plan(samples=200, entries=np.arange(50), pad=4, **other)
    for name, a, b, c in zip(one._fields, one, same, two, strict=True):
        np.testing.assert_array_equal(a, b)
        if name != "mask":
            assert np.mean(there(a) == there(c)) < 0.6, (
                name
            )  # a flip agrees half the time, and crops are one third flips


def test_round_and_client_are_not_mixed_up() -> None:
    assert not np.array_equal(plan(round_=1, client=2).rows, plan(round_=2, client=1).rows)
    assert not np.array_equal(plan(seed=1, round_=2).keys, plan(seed=2, round_=1).keys)


def test_clients_draw_for_themselves_what_is_drawn_for_all() -> None:
    """Plans of many clients at once are those drawn one by one, from streams that anyone can make
    again.
    """
    clients, samples, entries = (
        [4, 0, 70_001],
        [23, 7, 40],
        [np.arange(9), np.array([2, 5]), np.arange(100)],
    )
    together = draw_plans(6, 3, clients, samples, TRAINING, EVERYTHING, entries=entries, pad=2)
    for k, n, mine, many in zip(clients, samples, entries, together, strict=True):
        alone = draw_plan(6, 3, k, n, TRAINING, EVERYTHING, entries=mine, pad=2)
        for one, other in zip(alone, many, strict=True):
            np.testing.assert_array_equal(there(one), there(other))
        steps, order = 3 * -(-n // 10), stream(6, "batches", 3, k)
        expected = np.concatenate([order.permutation(n) for _ in range(3)])
        np.testing.assert_array_equal(many.rows[many.mask], expected)
        np.testing.assert_array_equal(
            there(many.means), mine[stream(6, "means", 3, k).integers(0, len(mine), (steps, 10))]
        )
        np.testing.assert_array_equal(
            there(many.partners), stream(6, "partners", 3, k).integers(0, n, (steps, 10))
        )


def test_padding_that_no_client_fills_is_left_out() -> None:
    """Batches of 10 of which 7 are filled at most: every draw is the one for 10, cut off after the
    seventh column.
    """
    entries = [np.arange(9), np.array([2, 5])]
    full, narrow = (
        draw_plans(6, 3, [4, 0], [7, 3], TRAINING, EVERYTHING, entries=entries, pad=2, width=w)
        for w in (None, 7)
    )
    for one, other in zip(full, narrow, strict=True):
        assert other.rows.shape == other.mask.shape == (3, 7)
        assert one.mask.sum() == other.mask.sum()
        for name, draws in one._asdict().items():
            expected = draws if name in ("keys", "lam") else draws[:, :7]
            np.testing.assert_array_equal(getattr(other, name), expected)


def test_a_batch_of_any_size_is_drawn_no_further_than_it_can_be_filled() -> None:
    """A batch of 10^12 is one of 2^16 places for whoever has fewer samples: each epoch's real
    places begin 2^16 draws later.
    """
    training, entries = Training(1, epochs=3, batch_size=10**12), np.arange(9)
    drawn = draw_plan(6, 3, 4, 7, training, EVERYTHING, entries=entries, pad=2)
    assert drawn.rows.shape == drawn.mask.shape == there(drawn.partners).shape == (3, 1 << 16)
    assert drawn.mask.sum(1).tolist() == [7, 7, 7]
    order, partners = (
        stream(6, "batches", 3, 4),
        stream(6, "partners", 3, 4).integers(0, 7, 3 << 16),
    )
    for epoch in range(3):
        assert drawn.rows[epoch, :7].tolist() == order.permutation(7).tolist()
        assert there(drawn.partners)[epoch, :7].tolist() == partners[epoch << 16 :][:7].tolist()
    alike = draw_plan(
        6,
        3,
        4,
        7,
        dataclasses.replace(training, batch_size=1 << 16),
        EVERYTHING,
        entries=entries,
        pad=2,
    )
    for one, other in zip(drawn, alike, strict=True):
        np.testing.assert_array_equal(there(one), there(other))


@pytest.mark.parametrize("batch_size", [7, 10, 5000, 10**12])
def test_one_epoch_in_one_batch_is_the_same_however_large_the_batch(batch_size: int) -> None:
    """Draws of a row come one after another, so that its first seven do not depend on how many
    follow.
    """
    drawn = draw_plan(
        6, 3, 4, 7, Training(1, batch_size=batch_size), EVERYTHING, entries=np.arange(9), pad=2
    ).cut(7)
    assert drawn.mask.all()
    assert (
        there(drawn.partners)[0].tolist() == stream(6, "partners", 3, 4).integers(0, 7, 7).tolist()
    )
    assert there(drawn.means)[0].tolist() == stream(6, "means", 3, 4).integers(0, 9, 7).tolist()
    bounds = [5, 5, 2] * 7
    assert (
        there(drawn.crops)[0].ravel().tolist()
        == stream(6, "crops", 3, 4).integers(0, bounds).tolist()
    )


def test_plans_drawn_alone_and_together_agree_where_some_fill_more_than_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With 8 places for 2^16: clients of 5, 20 and 12 samples in batches of 10^12, as a node draws
    and as the simulator does.
    """
    monkeypatch.setattr("fedmix.training.draws.DRAWN", 8)
    training, samples, entries = (
        Training(3, epochs=3, batch_size=10**12),
        [5, 20, 12],
        [np.arange(9)] * 3,
    )
    together = draw_plans(
        6, 3, [0, 1, 2], samples, training, EVERYTHING, entries=entries, pad=2, width=20
    )
    for k, (n, many) in enumerate(zip(samples, together, strict=True)):
        alone = draw_plan(6, 3, k, n, training, EVERYTHING, entries=entries[k], pad=2)
        for one, other in zip(alone.cut(n), many.cut(n), strict=True):
            np.testing.assert_array_equal(there(one), there(other))
    arranged = arrange(together, [Stay(0, 0, 0, 3), Stay(1, 1, 0, 3), Stay(2, 2, 0, 3)], 3)
    assert arranged.rows.shape == (3, 3, 20)
    assert arranged.mask.sum(-1).tolist() == [samples] * 3


# Clients


@given(st.integers(0, 2**32), st.integers(0, 10**6), st.data())
def test_clients_are_chosen_without_replacement(
    seed: int, round_: int, data: st.DataObject
) -> None:
    clients = data.draw(st.integers(1, 200))
    count = data.draw(st.integers(1, clients))
    chosen = choose_clients(seed, round_, clients, count).tolist()
    assert len(set(chosen)) == len(chosen) == count
    assert set(chosen) <= set(range(clients))


def test_everyone_is_chosen_equally_often() -> None:
    """5 of 20 in 2,000 rounds: 500 each, with deviation sqrt(2000·¼·¾) = 19.4."""
    times = np.bincount(
        np.concatenate([choose_clients(3, r, 20, 5) for r in range(2000)]), minlength=20
    )
    assert times.sum() == 10_000
    assert np.abs(times - 500).max() < 5 * 19.4


# Batches


@given(st.integers(1, 120), st.integers(1, 4), st.integers(1, 30), st.integers(0, 2**32))
def test_every_epoch_visits_every_sample_once(
    samples: int, epochs: int, size: int, seed: int
) -> None:
    training = Training(1, epochs=epochs, batch_size=size)
    drawn = draw_plan(seed, 0, 0, samples, training, Needs())
    per_epoch = int(np.ceil(samples / size))
    assert drawn.rows.shape == drawn.mask.shape == (epochs * per_epoch, size)
    assert len(drawn.keys) == drawn.steps == training.steps(samples) == epochs * per_epoch
    full = [size] * (samples // size) + ([samples % size] if samples % size else [])
    assert drawn.mask.sum(1).tolist() == full * epochs
    for epoch in range(epochs):
        steps = slice(epoch * per_epoch, (epoch + 1) * per_epoch)
        assert sorted(drawn.rows[steps][drawn.mask[steps]].tolist()) == list(range(samples))
    # Padding comes last in a batch: the positions of the real samples, and so their dropout masks,
    # do not depend on it.
    assert bool((np.diff(drawn.mask.astype(int), axis=1) <= 0).all())


def test_epochs_are_in_different_orders() -> None:
    drawn = plan(samples=40)
    epochs = drawn.rows.reshape(3, 40)
    assert not np.array_equal(epochs[0], epochs[1])
    assert not np.array_equal(epochs[1], epochs[2])
    assert not np.array_equal(epochs[0], np.arange(40))


# Means, partners, ratios, crops


def test_means_are_allowed_entries() -> None:
    allowed = np.array([3, 8, 21])
    per_sample = there(plan(needs=Needs(means="sample"), entries=allowed).means)
    assert per_sample.shape == (9, 10)
    assert set(per_sample.flatten().tolist()) == {3, 8, 21}  # one is missed with 3·(2/3)^90 = 4e-16
    per_batch = there(plan(needs=Needs(means="batch"), entries=allowed).means)
    assert per_batch.shape == (9, 1)
    assert set(per_batch.flatten().tolist()) <= {3, 8, 21}
    assert plan(needs=Needs(), entries=allowed).means is None


def test_partners_are_in_range() -> None:
    local = there(plan(samples=4, needs=Needs(partner="local"), everyone=1000).partners)
    assert set(local.flatten().tolist()) == {0, 1, 2, 3}
    everyone = there(
        draw_plan(0, 0, 0, 500, TRAINING, Needs(partner="global"), everyone=1000).partners
    )
    assert everyone.min() >= 0
    assert 900 < everyone.max() < 1000
    assert plan(needs=Needs()).partners is None


def test_every_sample_of_all_is_a_global_partner() -> None:
    """90 draws of 7: one is missed with 7·(6/7)^90 = 7e-6."""
    partners = there(plan(samples=23, needs=Needs(partner="global"), everyone=7).partners)
    assert set(partners.flatten().tolist()) == set(range(7))


@pytest.mark.parametrize("alpha", [0.2, 1.0, 50.0])
def test_ratio_is_beta_distributed(alpha: float) -> None:
    """Beta(α, α) has mean ½ and variance 1/(4(2α + 1)); for α = 1 it is uniform."""
    training = dataclasses.replace(TRAINING, epochs=4000)
    drawn = there(draw_plan(0, 0, 0, 10, training, Needs(alpha=alpha)).lam)
    assert (drawn.shape, drawn.dtype) == ((4000,), np.float32)
    lam = drawn.astype(float)
    assert lam.min() >= 0
    assert lam.max() <= 1
    variance = 1 / (4 * (2 * alpha + 1))
    assert abs(lam.mean() - 0.5) < 5 * np.sqrt(variance / 4000)
    fourth = np.mean((lam - 0.5) ** 4)
    assert abs(lam.var() - variance) < 5 * np.sqrt((fourth - variance**2) / 4000)
    assert plan(needs=Needs(partner="local")).lam is None


@pytest.mark.parametrize("pad", [1, 4])
def test_crops_are_in_range(pad: int) -> None:
    drawn = plan(samples=500, needs=Needs(partner="local"), pad=pad)
    for crops in (there(drawn.crops), there(drawn.partner_crops)):
        assert (crops.shape, crops.dtype) == ((150, 10, 3), np.uint8)
        for axis in (0, 1):
            values, counts = np.unique(crops[..., axis], return_counts=True)
            assert values.tolist() == list(range(2 * pad + 1))
            share = 1 / len(values)
            assert np.abs(counts - 1500 * share).max() < 5 * np.sqrt(1500 * share * (1 - share))
        assert abs((crops[..., 2] == 1).mean() - 0.5) < 5 * np.sqrt(0.25 / 1500)
        assert set(np.unique(crops[..., 2])) == {0, 1}
    assert plan(needs=Needs(partner="local")).crops is None
    assert draw_plans(0, 0, [0], [5], TRAINING, Needs())[0].crops is None
    assert plan(needs=Needs(), pad=pad).partner_crops is None


# Ragged clients


def test_arrange_puts_each_where_it_stays_and_masks_the_rest() -> None:
    plans = [
        plan(samples=n, client=k, entries=np.arange(9), pad=2) for k, n in enumerate((23, 7, 40))
    ]
    assert [p.steps for p in plans] == [9, 3, 12]  # 3 epochs of 3, 1 and 4 batches
    stays = [Stay(0, 1, 0, 9), Stay(1, 1, 9, 12), Stay(2, 0, 0, 12)]
    together = arrange(plans, stays, 2)
    assert together.rows.shape == (12, 2, 10)
    for stay in stays:
        for mine, placed in zip(plans[stay.client], together, strict=True):
            np.testing.assert_array_equal(
                there(mine), there(placed)[stay.start : stay.stop, stay.slot]
            )
    alone = arrange(plans[:2], [Stay(0, 0, 0, 9), Stay(1, 1, 0, 3)], 2)
    assert not alone.mask[3:, 1].any()
    assert alone.mask[:, 0].any(1).all()


def test_arrange_leaves_out_what_is_not_there() -> None:
    together = arrange(
        [plan(samples=n, needs=Needs()) for n in (5, 25)], [Stay(0, 0, 0, 3), Stay(1, 1, 0, 9)], 2
    )
    assert [name for name, f in zip(together._fields, together, strict=True) if f is not None] == [
        "rows",
        "mask",
        "keys",
    ]
