"""Means of one's own samples, by hand, and what is refused."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from fedmix import BadInput, Exchange, FedmixWarning
from fedmix.functional import MeanPool, means_of
from fedmix.privacy import guarantee

X = torch.arange(24.0).view(6, 2, 2)
Y = torch.tensor([0, 1, 1, 2, 0, 1])


def test_all_samples_in_one_mean() -> None:
    mine = means_of(X, Y)
    torch.testing.assert_close(mine.x, X.mean(0, keepdim=True))
    torch.testing.assert_close(mine.y, torch.tensor([[2 / 6, 3 / 6, 1 / 6]]))


def test_groups_cover_the_samples() -> None:
    """Two groups of three: their means have the mean of all, and each is one of three samples."""
    mine = means_of(X, Y, m=3, classes=4)
    assert mine.y.shape == (2, 4)
    torch.testing.assert_close(mine.x.mean(0), X.mean(0))
    shares = torch.stack([torch.bincount(Y, minlength=4) / 6])
    torch.testing.assert_close(mine.y.mean(0, keepdim=True), shares)
    torch.testing.assert_close((mine.y * 3).round(), mine.y * 3)
    assert len(means_of(X, Y, m=0.5)) == 2


def test_groups_differ_from_call_to_call() -> None:
    x, y = torch.rand(64, 3), torch.zeros(64, dtype=torch.long)
    torch.manual_seed(0)
    first = means_of(x, y, m=8)
    torch.manual_seed(0)  # not torch's randomness, which a loop may have seeded
    assert not torch.equal(first.x, means_of(x, y, m=8).x)
    one, two = (means_of(x, y, m=8, noise=1.0, seed=3) for _ in range(2))
    assert torch.equal(one.x, two.x)


def test_noise_is_secret_and_of_its_size() -> None:
    x, y = torch.zeros(100, 400), torch.zeros(100, dtype=torch.long)
    torch.manual_seed(0)
    first = means_of(x, y, m=10, noise=0.5)
    torch.manual_seed(0)
    second = means_of(x, y, m=10, noise=0.5)
    assert float(first.x.std()) == pytest.approx(0.5, rel=0.1)
    assert float((first.x - second.x).std()) == pytest.approx(0.5 * math.sqrt(2), rel=0.1)


def test_clipping_by_hand() -> None:
    """‖(3, 4)‖ = 5 with a label of norm 1: √26 is scaled to 2. Labels are shares again."""
    mine = means_of(torch.tensor([[3.0, 4.0]] * 4), torch.zeros(4, dtype=torch.long), clip=2.0)
    torch.testing.assert_close(mine.x, torch.tensor([[3.0, 4.0]]) * 2 / math.sqrt(26))
    torch.testing.assert_close(mine.y, torch.ones(1, 1))


def test_noised_labels_are_shares() -> None:
    x, y = torch.rand(60, 3), torch.randint(5, (60,))
    mine = means_of(x, y, m=6, classes=5, noise=2.0, clip=1.0)
    assert (mine.y >= 0).all()
    torch.testing.assert_close(mine.y.sum(1), torch.ones(10))


class Squares(Dataset[tuple[Tensor, int]]):
    """Samples made one by one; it counts how many are held."""

    def __len__(self) -> int:
        return 2100

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((2,), float(index)), index % 3


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([(torch.zeros(2), 1)])


def test_datasets_and_loaders() -> None:
    """The samples of the sampler, each once, in blocks."""
    mean = torch.full((1, 2), 2099 / 2)
    torch.testing.assert_close(means_of(Squares()).x, mean)
    for loader in (
        DataLoader(Squares(), batch_size=7, shuffle=True),
        DataLoader(Squares(), batch_sampler=[list(range(2100)), [5, 5, 5]]),
    ):
        torch.testing.assert_close(means_of(loader).x, mean)
    even = list(range(0, 100, 2))
    for some in (
        DataLoader(Squares(), sampler=SubsetRandomSampler(even)),
        DataLoader(Subset(Squares(), even), batch_size=9),
        Subset(Squares(), even),
    ):
        mine = means_of(some, classes=4)
        torch.testing.assert_close(mine.x, torch.full((1, 2), 49.0))
        assert mine.y.shape == (1, 4)
    often = WeightedRandomSampler([1.0, 1.0] + [0.0] * 2098, 50)
    torch.testing.assert_close(
        means_of(DataLoader(Squares(), sampler=often)).x, torch.full((1, 2), 0.5)
    )


def test_other_kinds_of_targets() -> None:
    soft = torch.tensor([[0.5, 0.5, 0.0]] * 6)
    torch.testing.assert_close(means_of(X.numpy(), soft.numpy()).y, soft[:1])
    values = torch.arange(6.0) - 2
    torch.testing.assert_close(means_of(X, values).y, torch.tensor([[0.5]]))
    noised = means_of(X, values, noise=1.0, clip=100.0)  # no labels: not made to add up to 1
    assert noised.y.shape == (1, 1)
    torch.testing.assert_close(means_of(TensorDataset(X, values)).y, torch.tensor([[0.5]]))


def test_arrays_as_they_come() -> None:
    """Reversed, of the other byte order, read-only."""
    plain = X.numpy()
    fixed = plain.copy()
    fixed.setflags(write=False)
    other = plain.astype(plain.dtype.newbyteorder())
    for array in (plain[::-1], other, fixed):
        torch.testing.assert_close(means_of(array, Y.numpy()).x, X.mean(0, keepdim=True))


def test_the_guarantee() -> None:
    x, y = torch.rand(40, 3), torch.randint(4, (40,))
    mine = means_of(x, y, m=10, classes=4, noise=0.5, clip=1.0)
    how = Exchange(m=10, noise=0.5, clip=1.0)
    assert mine.guarantee(1e-6) == guarantee(how, 10, 1e-6)
    assert mine.guarantee(releases=4).mu == pytest.approx(2 * mine.guarantee().mu)
    positive = means_of(x, y, m=10, noise=0.5, clip=1.0, nonnegative=True)
    # nonnegative vectors are at most √2·clip apart, others 2·clip
    assert mine.guarantee().mu == pytest.approx(math.sqrt(2) * positive.guarantee().mu)
    for other, said in (
        (means_of(x, y), "no noise"),
        (means_of(x, y, noise=1.0), "not clipped"),
        (means_of(x, y, noise=1.0, clip=1.0, seed=0), "from a seed"),
    ):
        promised = other.guarantee()
        assert not promised
        assert said in promised.reason
    with pytest.raises(BadInput, match="delta=2"):
        mine.guarantee(2)


def test_only_means_travel() -> None:
    mine = means_of(X, Y, m=2, classes=3)
    received = MeanPool.from_bytes(mine.to_bytes())
    assert set(vars(received)) == set(vars(MeanPool(X, X.flatten(1))))
    assert len(received) == 3


def test_a_mean_of_one_sample_is_that_sample() -> None:
    with pytest.warns(FedmixWarning, match="means of one sample each are these samples"):
        means_of(X, Y, m=1)
    with pytest.warns(FedmixWarning, match="raise m, or set clip and noise"):
        means_of(X[:1], Y[:1])
    means_of(X, Y, m=1, noise=1.0, clip=1.0)


SECRET = 7654.25
REFUSED: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "too few": ((X, Y), {"m": 7}, "m=7 is more than the 6 samples"),
    "m": ((X, Y), {"m": 0}, "exchange.m=0"),
    "clip": ((X, Y), {"clip": -1.0}, "exchange.clip=-1.0"),
    "labels missing": ((X,), {}, "x is of type Tensor and y is missing"),
    "labels twice": ((TensorDataset(X, Y), Y), {}, "has its own targets; leave y out"),
    "lengths": ((X, Y[:5]), {}, "give inputs .* and one target for each"),
    "nothing": ((X[:0], Y[:0]), {}, "one at least"),
    "no arrays": (([[1.0]], Y), {}, "`x` is of type list"),
    "text": ((np.array([["a"]]), np.array([0])), {}, "x is an array of <U1"),
    "pixels": ((X.byte(), Y), {}, "x is uint8; give inputs as the network gets them"),
    "not a number": ((X * torch.nan, Y), {}, "x holds NaN or infinity"),
    "targets": ((X, torch.full((6,), torch.inf)), {}, "y holds NaN or infinity"),
    "seed": ((X, Y), {"seed": -1}, "seed=-1 must be at least 0, and a whole number"),
    "float labels": ((X, Y.float()), {"classes": 3}, "y is floating-point, of .* whole numbers"),
    "vectors": ((X, torch.eye(3)[Y % 3]), {"classes": 4}, r"of shape \(6, 3\) and classes=4; give"),
    "labels": ((X, Y - 1), {}, "y holds negative labels"),
    "classes": ((X, Y), {"classes": 2}, "y holds labels outside 0..1; give classes="),
    "flags": ((X, Y.bool()), {}, "y of type bool"),
    "negative": ((X - SECRET, Y), {"nonnegative": True}, "x holds negative values"),
    "regression by class": ((X, Y.float()), {"split": "class"}, "split='class' needs class labels"),
    "stream": ((Stream(),), {}, "Stream cannot be read by position; collect its samples"),
    "no pairs": ((TensorDataset(X),), {}, "gives list, not pairs of input and target"),
    "no batches": ((DataLoader(Squares(), batch_size=None),), {}, "batch_size=None"),
    "no data": ((TensorDataset(X[:0], Y[:0]),), {}, "this data set has no samples"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    args, settings, said = REFUSED[name]
    with pytest.raises(BadInput, match=said) as error:
        means_of(*args, **settings)
    assert str(SECRET)[:4] not in str(error.value)
