"""What the server makes of releases: order, averages and owners.

Release i holds 2^i, so sums name who is in an entry.
"""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmix import BadInput
from fedmix.exchange import Pool, Releases, build

Array = np.ndarray[Any, Any]
SIZES = {0: 3, 2: 1, 5: 4, 9: 2}  # releases by client, ten in all
OWNER = [0, 0, 0, 2, 5, 5, 5, 5, 9, 9]


def releases(sizes: dict[int, int] = SIZES) -> Releases:
    """Client by client, x = (2^i, i) and y = (i, −i) for the i-th release of all."""
    owner = np.repeat(list(sizes), list(sizes.values()))
    i = torch.arange(len(owner), dtype=torch.float64)
    return Releases(owner, torch.stack([2**i, i], 1).float(), torch.stack([i, -i], 1).float())


def pool_of(average: int, seed: int = 0) -> Pool:
    return build(releases(), average, np.random.default_rng(seed))


def entry_members(pool: Pool, sizes: list[int]) -> list[list[int]]:
    totals = [round(float(x) * s) for x, s in zip(pool.x[:, 0], sizes, strict=True)]
    return [[i for i in range(10) if t >> i & 1] for t in totals]


def test_shuffle_keeps_every_release_once() -> None:
    pool = pool_of(1)
    order = pool.x[:, 1].int().tolist()
    assert sorted(order) == list(range(10))
    assert pool.x[:, 0].tolist() == [2.0**i for i in order]
    assert pool.y.tolist() == [[i, -i] for i in order]
    assert [pool.owners[g].tolist() for g in range(10)] == [[OWNER[i]] for i in order]


def test_position_tells_no_owner() -> None:
    """Over 2,000 shuffles, release 0 is equally often at each of ten places: chi-square of 9
    degrees below 40 (p = 1e-5).
    """
    orders = [pool_of(1, seed).x[:, 1].int().tolist() for seed in range(2000)]
    at = np.bincount([order.index(0) for order in orders], minlength=10)
    assert ((at - 200) ** 2 / 200).sum() < 40
    assert orders[0] != sorted(orders[0])
    assert orders[0] != orders[1]
    assert pool_of(1, 7).x.tolist() == pool_of(1, 7).x.tolist()


@pytest.mark.parametrize(
    ("average", "sizes"), [(2, [2] * 5), (3, [3, 3, 4]), (4, [4, 6]), (6, [10]), (10, [10])]
)
def test_average_of_entries(average: int, sizes: list[int]) -> None:
    """Every entry averages `average` releases with equal weights; the last takes the rest."""
    for seed in range(5):
        pool = pool_of(average, seed)
        assert len(pool) == len(sizes)
        groups = entry_members(pool, sizes)
        assert [len(g) for g in groups] == sizes
        assert sorted(i for g in groups for i in g) == list(range(10))
        for entry, group in enumerate(groups):
            mean = sum(group) / len(group)
            np.testing.assert_allclose(pool.x[entry, 1].item(), mean, rtol=1e-6)
            np.testing.assert_allclose(pool.y[entry].numpy(), [mean, -mean], rtol=1e-6)
            assert pool.owners[entry].tolist() == sorted({OWNER[i] for i in group})


@given(st.lists(st.integers(1, 4), min_size=1, max_size=8), st.data(), st.integers(0, 2**32))
def test_average_for_any_number_of_releases(
    counts: list[int], data: st.DataObject, seed: int
) -> None:
    total = sum(counts)
    average = data.draw(st.integers(1, total))
    pool = build(releases(dict(enumerate(counts))), average, np.random.default_rng(seed))
    sizes = [average] * (total // average - 1) + [average + total % average]
    assert len(pool) == len(sizes)
    np.testing.assert_allclose(
        pool.x[:, 1].double().numpy() @ sizes, total * (total - 1) / 2, rtol=1e-5
    )


def test_more_than_there_is_cannot_be_averaged() -> None:
    with pytest.raises(
        BadInput,
        match=r"exchange.average=11 is more than the 10 means that clients released; lower it",
    ):
        pool_of(11)


def test_bytes() -> None:
    assert pool_of(1).bytes == 10 * (2 + 2) * 4
    assert pool_of(3).bytes == 3 * (2 + 2) * 4


def test_entries_for() -> None:
    pool = pool_of(1)
    order = pool.x[:, 1].int().tolist()
    for client in (0, 2, 5, 9):
        mine = [g for g, i in enumerate(order) if OWNER[i] == client]
        assert pool.entries_for(client).tolist() == list(range(10))
        assert pool.entries_for(client, own=True).tolist() == mine
        assert pool.entries_for(client, exclude_own=True).tolist() == sorted(
            set(range(10)) - set(mine)
        )
    assert pool.entries_for(1, exclude_own=True).tolist() == list(
        range(10)
    )  # client 1 sent nothing


def test_an_averaged_entry_belongs_to_all_who_are_in_it() -> None:
    pool = pool_of(3)
    groups = entry_members(pool, [3, 3, 4])
    for client in (2, 9):
        others = [g for g, group in enumerate(groups) if client not in {OWNER[i] for i in group}]
        assert pool.entries_for(client, exclude_own=True).tolist() == others


def test_nothing_left_without_own_is_refused() -> None:
    with pytest.raises(
        BadInput,
        match=r"every entry of the pool holds data of client 5.*smaller average, or "
        r"exclude_own=False",
    ):
        pool_of(10).entries_for(5, exclude_own=True)
