"""Laws of the partitions, over settings that hypothesis makes up."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fedmix.core.errors import BadInput
from fedmix.data import partition
from fedmix.data.ragged import Ragged

Array = np.ndarray[Any, Any]
seeds = st.integers(0, 2**32 - 1)
class_sizes = st.lists(st.integers(1, 60), min_size=1, max_size=12)


@st.composite
def class_settings(draw: st.DrawFn, coverage: int) -> tuple[list[int], int, int]:
    """Class sizes, clients and classes per client that can work, with at least `coverage` shards of
    each class.
    """
    classes = draw(st.integers(1, 8))
    per_client = draw(st.integers(1, classes))
    clients = draw(st.integers(-(-coverage * classes // per_client), 24))
    sizes = draw(st.lists(st.integers(clients, 60), min_size=classes, max_size=classes))
    return sizes, clients, per_client


def labelled(sizes: list[int], seed: int) -> Array:
    """Shuffled labels with so many samples of each class; class names are not 0..C-1 on purpose."""
    return np.random.default_rng(seed).permutation(np.repeat(3 + 2 * np.arange(len(sizes)), sizes))


def shards(rows: Ragged, labels: Array) -> Array:
    """How many samples of each class each client has, (clients, classes)."""
    return np.array(
        [[(labels[rows[k]] == c).sum() for c in np.unique(labels)] for k in range(len(rows))]
    )


def assert_each_once(rows: Ragged, count: int) -> None:
    assert sorted(rows.flat.tolist()) == list(range(count))


@given(class_settings(coverage=1), seeds)
def test_balanced_classes(setting: tuple[list[int], int, int], seed: int) -> None:
    sizes, clients, per_client = setting
    labels = labelled(sizes, seed)
    rows = partition.by_classes(labels, clients, per_client, np.random.default_rng(seed))
    assert_each_once(rows, len(labels))
    held = shards(rows, labels)
    assert ((held > 0).sum(axis=1) == per_client).all()
    cut = (held > 0).sum(axis=0)
    assert cut.sum() == clients * per_client
    assert cut.max() - cut.min() <= 1
    for c in range(len(sizes)):
        pieces = held[:, c][held[:, c] > 0]
        assert pieces.max() - pieces.min() <= 1


def test_cifar10_among_60_clients_with_two_classes_each() -> None:
    """5,000 images of a class in 12 shards: 5000 = 8·417 + 4·416."""
    labels = np.repeat(np.arange(10), 5000)
    held = shards(partition.by_classes(labels, 60, 2, np.random.default_rng(0)), labels)
    for c in range(10):
        assert sorted(held[:, c][held[:, c] > 0].tolist()) == [416] * 4 + [417] * 8
    assert ((held > 0).sum(axis=1) == 2).all()


def test_which_classes_get_one_more_shard_is_drawn() -> None:
    labels = np.repeat(np.arange(3), 20)
    more = {
        int(
            np.argmax(
                (
                    shards(partition.by_classes(labels, 4, 1, np.random.default_rng(s)), labels) > 0
                ).sum(axis=0)
            )
        )
        for s in range(30)
    }
    assert more == {0, 1, 2}


@pytest.mark.parametrize("balanced", [True, False])
def test_who_gets_the_longer_shard_is_drawn(balanced: bool) -> None:
    """Seven samples for two clients: the first gets four in half of 200 draws, deviation 7.1."""
    rngs = map(np.random.default_rng, range(200))
    dealt = [partition.by_classes(np.zeros(7), 2, 1, rng, balanced=balanced) for rng in rngs]
    sizes = [rows.sizes.tolist() for rows in dealt]
    assert sizes.count([4, 3]) + sizes.count([3, 4]) == 200
    assert abs(sizes.count([4, 3]) - 100) < 5 * 7.1


@given(class_settings(coverage=2), seeds)
def test_random_classes(setting: tuple[list[int], int, int], seed: int) -> None:
    sizes, clients, per_client = setting
    labels = labelled(sizes, seed)
    rows = partition.by_classes(
        labels, clients, per_client, np.random.default_rng(seed), balanced=False
    )
    assert_each_once(rows, len(labels))
    held = shards(rows, labels)
    assert ((held > 0).sum(axis=1) == per_client).all()
    for c in range(len(sizes)):
        pieces = held[:, c][held[:, c] > 0]
        assert pieces.max() - pieces.min() <= 1


@given(class_sizes, st.integers(1, 12), st.integers(1, 4), seeds)
def test_shards(sizes: list[int], clients: int, per_client: int, seed: int) -> None:
    assume(clients * per_client <= sum(sizes))
    labels = labelled(sizes, seed)
    rows = partition.shards(labels, clients, per_client, np.random.default_rng(seed))
    assert_each_once(rows, len(labels))
    assert rows.sizes.max() - rows.sizes.min() <= per_client
    if per_client == 1:  # then the clients, in some order, are the pieces of the sorted labels
        small, larger = divmod(len(labels), clients)
        ends = np.cumsum([small + (s < larger) for s in range(clients)])
        held = sorted(sorted(labels[rows[k]].tolist()) for k in range(clients))
        assert held == sorted(piece.tolist() for piece in np.split(np.sort(labels), ends[:-1]))


def test_shards_are_dealt_at_random() -> None:
    """120 shards of CIFAR-10, 12 of a class: the second is of the first one's class with
    probability 11/119.
    """
    labels = np.repeat(np.arange(10), 5004)  # 12 shards of 417
    one_class = [
        (shards(partition.shards(labels, 60, 2, np.random.default_rng(seed)), labels) > 0).sum(
            axis=1
        )
        == 1
        for seed in range(40)
    ]
    assert np.mean(one_class) == pytest.approx(
        11 / 119, abs=4 * np.sqrt(11 / 119 * 108 / 119 / 2400)
    )


def test_shards_keep_the_order_drawn() -> None:
    """So that they are the same everywhere: sorts that may swap equals differ between machines."""
    labels = np.random.default_rng(0).integers(0, 3, 999)
    order = np.random.default_rng(1).permutation(999).tolist()
    half = sorted(sorted(order, key=labels.__getitem__)[:500])  # Python's sort is stable
    rows = partition.shards(labels, 2, 1, np.random.default_rng(1))
    assert half in (rows[0].tolist(), rows[1].tolist())


def test_random_classes_are_uniform() -> None:
    """Of 4 classes each client draws 2, so each of the 6 pairs with probability 1/6: 200 of 1,200,
    deviation 13.
    """
    labels = np.repeat(np.arange(4), 1200)
    held = (
        shards(
            partition.by_classes(labels, 1200, 2, np.random.default_rng(1), balanced=False), labels
        )
        > 0
    )
    pairs, counts = np.unique(held, axis=0, return_counts=True)
    assert len(pairs) == 6
    assert (abs(counts - 200) < 5 * 13).all()


@given(class_sizes, st.integers(1, 10), st.floats(0.05, 100), seeds)
def test_dirichlet_deals_every_sample_once(
    sizes: list[int], clients: int, alpha: float, seed: int
) -> None:
    labels = labelled(sizes, seed)
    assume(clients <= len(labels))
    rows = partition.dirichlet(labels, clients, alpha, np.random.default_rng(seed), least=0)
    assert_each_once(rows, len(labels))
    assert len(rows) == clients


@given(class_sizes, st.integers(1, 10), seeds)
def test_dirichlet_with_large_alpha_is_even(sizes: list[int], clients: int, seed: int) -> None:
    labels = labelled(sizes, seed)
    assume(clients <= len(labels))
    rows = partition.dirichlet(labels, clients, 1e12, np.random.default_rng(seed), least=0)
    assert (abs(shards(rows, labels) - np.array(sizes) / clients) < 1 + 1e-3).all()


@given(class_sizes, st.integers(1, 10), seeds)
def test_dirichlet_with_small_alpha_gives_a_class_to_one_client(
    sizes: list[int], clients: int, seed: int
) -> None:
    """Someone else has a share above 1/120 with probability of about alpha·clients·log(120) < 1e-8
    per class.
    """
    labels = labelled(sizes, seed)
    assume(clients <= len(labels))
    held = shards(
        partition.dirichlet(labels, clients, 1e-10, np.random.default_rng(seed), least=0), labels
    )
    assert ((held > 0).sum(axis=0) == 1).all()


def test_dirichlet_moments() -> None:
    """A share of Dir(a, ..., a) over K has mean 1/K and variance (1/K)(1 - 1/K) / (K·a + 1)."""
    labels = np.repeat(np.arange(1000), 1000)
    rows = partition.dirichlet(labels, 4, 0.5, np.random.default_rng(3))
    first = np.bincount(labels[rows[0]], minlength=1000) / 1000
    assert first.mean() == pytest.approx(1 / 4, abs=5 * np.sqrt(0.0625 / 1000))
    assert first.var() == pytest.approx(0.25 * 0.75 / 3, rel=0.15)


def test_dirichlet_draws_again_until_everyone_has_enough() -> None:
    labels = np.repeat(np.arange(10), 100)
    for seed in range(20):
        assert (
            partition.dirichlet(labels, 10, 0.3, np.random.default_rng(seed), least=20).sizes.min()
            >= 20
        )


@given(st.integers(1, 300), st.integers(1, 50), seeds)
def test_iid(count: int, clients: int, seed: int) -> None:
    assume(clients <= count)
    rows = partition.iid(count, clients, np.random.default_rng(seed))
    assert_each_once(rows, count)
    assert rows.sizes.max() - rows.sizes.min() <= 1


@given(st.lists(st.sampled_from(["anne", "bob", "cy"]), min_size=1))
def test_natural(owners: list[str]) -> None:
    rows, names = partition.natural(owners)
    assert names == sorted(set(owners))
    assert_each_once(rows, len(owners))
    for k, name in enumerate(names):
        assert [owners[r] for r in rows[k]] == [name] * owners.count(name)
        assert (np.diff(rows[k]) > 0).all()


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.floats(0.01, 1), seeds)
def test_share(sizes: list[int], fraction: float, seed: int) -> None:
    index = partition.natural(np.repeat(np.arange(len(sizes)), sizes))[0]
    kept = partition.share(index, fraction, np.random.default_rng(seed))
    more = partition.share(index, min(1.0, 2 * fraction), np.random.default_rng(seed))
    for k, size in enumerate(sizes):
        assert len(set(kept[k].tolist())) == len(kept[k])
        assert len(kept[k]) == 1 or abs(len(kept[k]) - fraction * size) <= 0.5
        assert set(kept[k].tolist()) <= set(more[k].tolist()) <= set(index[k].tolist())


def test_a_share_is_drawn() -> None:
    """Half of ten rows: each is kept in half of 400 draws, deviation 10."""
    index = Ragged.of([np.arange(10)])
    rngs = map(np.random.default_rng, range(400))
    kept = np.concatenate([partition.share(index, 0.5, rng)[0] for rng in rngs])
    assert (abs(np.bincount(kept, minlength=10) - 200) < 5 * 10).all()


def test_share_of_the_papers_table() -> None:
    """With 833 local samples: 20 % are 167 (166.6), 50 % are 416 (416.5, to even)."""
    index = Ragged.of([np.arange(833)])
    counts = [
        int(partition.share(index, f, np.random.default_rng(0)).sizes[0]) for f in (0.2, 0.5, 1.0)
    ]
    assert counts == [167, 416, 833]


@given(class_sizes, st.integers(1, 720), seeds)
def test_subset(sizes: list[int], count: int, seed: int) -> None:
    labels = labelled(sizes, seed)
    assume(count <= len(labels))
    rows = partition.subset(labels, count, np.random.default_rng(seed))
    assert len(set(rows.tolist())) == len(rows) == count
    taken = np.array([(labels[rows] == c).sum() for c in np.unique(labels)])
    assert (abs(taken - count * np.array(sizes) / len(labels)) < 1).all()


def test_subset_gives_the_rest_to_the_largest_remainders() -> None:
    """4 of 7 and 3 samples: 2.8 and 1.2. Of 40 equal classes with 1.5 each, the first 20 drawn."""
    labels = np.repeat([0, 1], [7, 3])
    rows = partition.subset(labels, 4, np.random.default_rng(0))
    assert np.bincount(labels[rows]).tolist() == [3, 1]
    labels, drawn = np.repeat(np.arange(40), 2), np.random.default_rng(1).permutation(40)[:20]
    rows = partition.subset(labels, 60, np.random.default_rng(1))
    assert np.flatnonzero(np.bincount(labels[rows]) == 2).tolist() == sorted(drawn.tolist())


def test_all_is_as_it_was() -> None:
    assert partition.share(Ragged.of([[5, 2]]), 1, np.random.default_rng(0))[0].tolist() == [5, 2]


@pytest.mark.parametrize(("how", "balanced"), [("classes", True), ("random-classes", False)])
def test_classes_are_dealt_or_drawn_as_named(how: str, balanced: bool) -> None:
    labels = np.repeat(np.arange(10), 30)
    named = partition.spread(labels, 12, how, 3, None, np.random.default_rng(0))
    rows = partition.by_classes(labels, 12, 3, np.random.default_rng(0), balanced=balanced)
    assert named.flat.tolist() == rows.flat.tolist()


def test_equal_seeds_give_equal_partitions() -> None:
    labels = np.repeat(np.arange(10), 30)
    for how, alpha in (
        ("classes", None),
        ("random-classes", None),
        ("shards", None),
        ("dirichlet", 0.5),
        ("iid", None),
    ):
        one, two, other = (
            partition.spread(labels, 12, how, 3, alpha, np.random.default_rng(s)).flat.tolist()
            for s in (1, 1, 2)
        )
        assert one == two
        assert one != other


LABELS = np.repeat(np.arange(3), 4)
BAD: list[tuple[str, Any]] = [
    ("4 classes per client", lambda rng: partition.by_classes(LABELS, 3, 4, rng)),
    ("0 classes per client", lambda rng: partition.by_classes(LABELS, 3, 0, rng)),
    ("13 clients for 12 samples", lambda rng: partition.by_classes(LABELS, 13, 1, rng)),
    ("0 clients", lambda rng: partition.iid(12, 0, rng)),
    ("13 clients", lambda rng: partition.iid(12, 13, rng)),
    ("cannot hold all 3 classes", lambda rng: partition.by_classes(LABELS, 2, 1, rng)),
    ("cannot be cut into 5 shards", lambda rng: partition.by_classes(LABELS, 5, 3, rng)),
    ("of 2 samples cannot be cut into 3", lambda rng: partition.by_classes(LABELS[:6], 3, 2, rng)),
    (
        "cannot be cut into 5 shards",
        lambda rng: partition.by_classes(LABELS, 5, 3, rng, balanced=False),
    ),
    ("left one out", lambda rng: partition.by_classes(np.arange(20), 10, 2, rng, balanced=False)),
    ("alpha is 0", lambda rng: partition.dirichlet(LABELS, 3, 0, rng)),
    ("alpha is -1", lambda rng: partition.dirichlet(LABELS, 3, -1, rng)),
    ("alpha is nan", lambda rng: partition.dirichlet(LABELS, 3, np.nan, rng)),
    ("alpha is inf", lambda rng: partition.dirichlet(LABELS, 3, np.inf, rng)),
    ("at least 5 of 12", lambda rng: partition.dirichlet(LABELS, 3, 1.0, rng, least=5)),
    ("fewer than 1 samples", lambda rng: partition.dirichlet(LABELS, 12, 1e-6, rng)),
    ("share of 0", lambda rng: partition.share(Ragged.of([[0]]), 0, rng)),
    ("share of 1.5", lambda rng: partition.share(Ragged.of([[0]]), 1.5, rng)),
    ("share of nan", lambda rng: partition.share(Ragged.of([[0]]), np.nan, rng)),
    ("cannot take 13", lambda rng: partition.subset(LABELS, 13, rng)),
    ("cannot take 0", lambda rng: partition.subset(LABELS, 0, rng)),
    ("no partition 'shard'", lambda rng: partition.spread(LABELS, 3, "shard", 1, None, rng)),
    ("0 shards per client", lambda rng: partition.shards(LABELS, 3, 0, rng)),
    (
        "5 shards per client; 12 samples .* allow 1..4$",
        lambda rng: partition.shards(LABELS, 3, 5, rng),
    ),
    ("13 clients for 12 samples", lambda rng: partition.shards(LABELS, 13, 1, rng)),
    ("needs `alpha`", lambda rng: partition.spread(LABELS, 3, "dirichlet", 1, None, rng)),
    ("does not use `alpha`", lambda rng: partition.spread(LABELS, 3, "iid", 1, 0.5, rng)),
]


@pytest.mark.parametrize(("words", "call"), BAD, ids=[words for words, _ in BAD])
def test_bad_settings_say_so(words: str, call: Any) -> None:
    with pytest.raises(BadInput, match=words):
        call(np.random.default_rng(0))
