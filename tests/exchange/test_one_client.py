"""What a client releases: groups, means, cut-off and noise, each against numbers worked out by
hand.

Sample i holds the value 2^i where a test must know who is in a group: the mean times the size, in
binary, names the members.
"""

import math
from collections import Counter
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedmix import BadInput, Exchange
from fedmix.data import Ragged
from fedmix.data.transforms import Images, OneHot
from fedmix.exchange import Means, average, release, split_at_random, split_by_class
from fedmix.exchange.one_client import split

Array = np.ndarray[Any, Any]


def plain(raw: Array) -> Tensor:
    return torch.from_numpy(raw).float()


def one_hot(labels: list[int], classes: int) -> Tensor:
    return torch.from_numpy(np.eye(classes, dtype=np.float32)[labels])


def released(
    x: Array, y: Tensor, how: Exchange, *, seed: int = 0, client: int = 0, noise: int = 1
) -> Means:
    means = release(
        client, x, y, how, plain, np.random.default_rng(seed), np.random.default_rng(noise)
    )
    assert means is not None
    return means


def members(mean: float, size: int) -> set[int]:
    total = round(mean * size)
    return {i for i in range(total.bit_length()) if total >> i & 1}


# M_k


@pytest.mark.parametrize(
    ("m", "samples", "expected"),
    [
        (1, 7, 1),
        (3, 7, 3),
        (np.int64(3), 7, 3),  # as the smallest of some sizes is
        (7, 7, 7),
        ("all", 7, 7),
        ("all", 1, 1),
        (0.5, 8, 4),
        (0.5, 7, 3),  # 3.5: whole samples only
        (0.25, 40, 10),
        (0.1, 5, 1),  # half a sample: at least one
        (0.29, 100, 29),  # 0.29 * 100 is 28.999999999999996 in floating point
    ],
)
def test_group_size(m: Any, samples: int, expected: int) -> None:
    assert Exchange(m=m).group_size(0, samples) == expected


def test_group_size_of_every_percentage() -> None:
    """Integers say what p % of n is; a product of floats may fall just short of it."""
    wrong = [
        (part, samples)
        for part in range(1, 100)
        for samples in range(1, 201)
        if Exchange(m=part / 100).group_size(0, samples) != max(1, part * samples // 100)
    ]
    assert not wrong


@pytest.mark.parametrize("name", ["cutoff", "average", "noise", "wait", "clip", "m"])
def test_nan_is_no_setting(name: str) -> None:
    with pytest.raises(BadInput, match=f"exchange.{name}=nan"):
        Exchange(**{name: cast(Any, float("nan"))})


def test_more_than_the_client_has_is_refused() -> None:
    with pytest.raises(
        BadInput, match=r"exchange.m=8 is more than the 7 samples of client 3; .*exchange.cutoff=8"
    ):
        Exchange(m=8).group_size(3, 7)
    with pytest.raises(BadInput, match="than the 2 samples of client 3"):
        released(np.zeros((2, 1)), one_hot([0, 1], 2), Exchange(m=8), client=3)


# Groups


@given(data=st.data(), seed=st.integers(0, 2**32))
def test_random_split(data: st.DataObject, seed: int) -> None:
    count = data.draw(st.integers(1, 200))
    size = data.draw(st.integers(1, count))
    groups = split_at_random(count, size, np.random.default_rng(seed))
    assert sorted(np.concatenate(groups).tolist()) == list(range(count))
    assert [len(g) for g in groups] == [size] * (count // size - 1) + [size + count % size]


def test_random_split_is_random() -> None:
    """Position 0 falls into each of ten groups equally often: a chi-square of 9 degrees stays below
    40 (p = 1e-5).
    """
    where = Counter[int]()
    for seed in range(1000):
        groups = split_at_random(50, 5, np.random.default_rng(seed))
        where[next(i for i, g in enumerate(groups) if 0 in g)] += 1
    assert sum((where[i] - 100) ** 2 / 100 for i in range(10)) < 40


@given(
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=120),
    data=st.data(),
    seed=st.integers(0, 2**32),
)
def test_class_split(labels: list[int], data: st.DataObject, seed: int) -> None:
    size = data.draw(st.integers(1, len(labels)))
    groups = split_by_class(np.array(labels), size, np.random.default_rng(seed))
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(labels)))
    assert min(len(g) for g in groups) >= size
    counts = Counter(labels)
    large = {c: n for c, n in counts.items() if n >= size}
    others = len(labels) - sum(large.values())
    assert len(groups) == sum(n // size for n in large.values()) + others // size
    mixed = [g for g in groups if len({labels[i] for i in g}) > 1]
    if others == 0:
        assert not mixed
    elif others >= size:  # small classes fill groups of their own
        assert not any(labels[i] in large for g in mixed for i in g)
    else:  # too few for a group: they join one
        assert len(mixed) == 1


@pytest.mark.parametrize("how", ["random", "class"])
def test_too_few_for_two_groups_stay_together(how: str) -> None:
    """As they are, and with nothing drawn; one more, and there are two."""
    rng = np.random.default_rng(0)
    assert [g.tolist() for g in split(torch.eye(5), 3, how, rng)] == [[0, 1, 2, 3, 4]]
    assert rng.random() == np.random.default_rng(0).random()
    assert [len(g) for g in split(torch.eye(6), 3, how, rng)] == [3, 3]


def test_class_split_deals_a_class_out_at_random() -> None:
    first = {
        tuple(sorted(split_by_class(np.zeros(6, int), 3, np.random.default_rng(s))[0]))
        for s in range(200)
    }
    assert (
        len(first) == 20
    )  # all (6 choose 3) triples occur: a given one is missed with (19/20)^200 = 4e-5


def test_released_groups_partition_the_samples() -> None:
    """Seven samples, M_k = 3: groups of 3 and 4, whose labels are averaged with their inputs."""
    x, labels = 2.0 ** np.arange(7)[:, None], [0, 0, 0, 1, 1, 2, 2]
    for seed in range(20):
        means = released(x, one_hot(labels, 3), Exchange(m=3), seed=seed)
        groups = [
            members(float(mean), size) for mean, size in zip(means.x[:, 0], (3, 4), strict=True)
        ]
        assert [len(g) for g in groups] == [3, 4]
        assert groups[0] | groups[1] == set(range(7))
        for group, y in zip(groups, means.y, strict=True):
            expected = [sum(labels[i] == c for i in group) / len(group) for c in range(3)]
            np.testing.assert_allclose(y.numpy(), expected, rtol=1e-6)


def test_released_class_groups() -> None:
    """Classes of 4, 2 and 3 samples, M_k = 2: groups 2+2 | 2 | 3, each of one class."""
    x, labels = 2.0 ** np.arange(9)[:, None], [0, 1, 2, 0, 1, 2, 0, 2, 0]
    means = released(x, one_hot(labels, 3), Exchange(m=2, split="class"))
    assert means.y.tolist() == [[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]]
    groups = [members(float(m), s) for m, s in zip(means.x[:, 0], (2, 2, 2, 3), strict=True)]
    assert groups[0] | groups[1] == {0, 3, 6, 8}
    assert groups[2:] == [{1, 4}, {2, 5, 7}]


# Means


def test_mean_of_everything_by_hand() -> None:
    x = np.array([[0.0, 2.0], [4.0, 6.0], [5.0, 1.0], [3.0, 7.0]])
    means = released(x, one_hot([0, 1, 1, 1], 2), Exchange())
    assert means.x.tolist() == [[3.0, 4.0]]
    assert means.y.tolist() == [[0.25, 0.75]]
    assert means.bytes == (2 + 2) * 4


def test_single_samples_are_released_as_they_are() -> None:
    x = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)
    y = one_hot([0, 1, 2, 0, 1, 2], 3)
    means = released(x, y, Exchange(m=1))
    together = np.concatenate([means.x.numpy(), means.y.numpy()], 1)
    assert sorted(map(tuple, together)) == sorted(map(tuple, np.concatenate([x, y.numpy()], 1)))


def test_regression_targets_are_averaged() -> None:
    means = released(
        np.array([[1.0], [2.0], [6.0]]),
        torch.tensor([[1.0, 0.0], [2.0, -3.0], [3.0, 9.0]]),
        Exchange(),
    )
    assert (means.x.tolist(), means.y.tolist()) == ([[3.0]], [[2.0, 2.0]])


@pytest.mark.parametrize("kind", ["images", "inverted", "text"])
def test_means_are_numpys_means_in_units(kind: str) -> None:
    """2,500 samples, so that groups begin, end and lie across the blocks of the sums."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 2500)
    groups = np.split(rng.permutation(2500), [3, 900, 1024, 2100])
    cut = Ragged.of(groups)
    if kind == "text":
        raw = rng.integers(0, 5, (2500, 6)).astype(np.uint8)
        units, transform = np.eye(5)[raw], OneHot(5)
        means = average(
            raw, one_hot(labels.tolist(), 4), cut, lambda r: transform.units(torch.from_numpy(r))
        )
    else:
        raw = rng.integers(0, 256, (2500, 4, 3, 2)).astype(np.uint8)
        units = raw.astype(np.float64).transpose(0, 3, 1, 2) / 255
        units = 1 - units if kind == "inverted" else units
        images = Images((0.5, 0.5), (0.1, 0.2), invert=kind == "inverted")
        means = average(
            raw, one_hot(labels.tolist(), 4), cut, lambda r: images.units(torch.from_numpy(r))
        )
    assert means.x.dtype == means.y.dtype == torch.float32
    np.testing.assert_allclose(
        means.x.numpy(), np.stack([units[g].mean(0) for g in groups]), rtol=1e-6, atol=1e-7
    )
    np.testing.assert_allclose(
        means.y.numpy(), np.stack([np.eye(4)[labels[g]].mean(0) for g in groups]), rtol=1e-6
    )


# Cut-off


def test_cutoff() -> None:
    y = one_hot([0, 1, 0], 2)
    arguments = (plain, np.random.default_rng(0), np.random.default_rng(1))
    assert release(0, np.ones((3, 1)), y, Exchange(cutoff=4), *arguments) is None
    assert release(0, np.ones((3, 1)), y, Exchange(cutoff=3), *arguments) is not None
    # The cut-off is looked at before M_k: it is the way to let small clients off.
    assert release(0, np.ones((3, 1)), y, Exchange(m=5, cutoff=5), *arguments) is None


# Noise


def test_noise_has_the_variance_asked_for() -> None:
    """n·s²/σ² is chi-square with n degrees: s²/σ² deviates from 1 by sqrt(2/n), the mean from 0 by
    σ/sqrt(n).
    """
    sigma, n = 0.3, 100 * 400
    x = np.random.default_rng(0).standard_normal((100, 400))
    y = torch.from_numpy(np.random.default_rng(1).dirichlet(np.ones(3), 100).astype(np.float32))
    clean = released(x, y, Exchange(m=1))
    noisy = released(x, y, Exchange(m=1, noise=sigma))
    drawn = (noisy.x - clean.x).double().numpy()
    assert abs((drawn**2).mean() / sigma**2 - 1) < 5 * math.sqrt(2 / n)
    assert abs(drawn.mean()) < 5 * sigma / math.sqrt(n)
    # A normal exceeds 1.96 deviations with probability 0.05.
    assert abs((np.abs(drawn) > 1.959964 * sigma).mean() - 0.05) < 5 * math.sqrt(0.05 * 0.95 / n)
    assert torch.equal(noisy.y, clean.y)


def test_noise_is_the_streams_alone() -> None:
    x, y = np.zeros((4, 8)), one_hot([0, 1, 0, 1], 2)
    one, same, other = (released(x, y, Exchange(noise=1.0), noise=s).x for s in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(released(x + 5, y, Exchange(noise=1.0), noise=1).x, one + 5)
    drawn = np.random.default_rng(1).standard_normal((1, 8), dtype=np.float32)
    assert torch.equal(released(x, y, Exchange(noise=2.0), noise=1).x, 2 * torch.from_numpy(drawn))
