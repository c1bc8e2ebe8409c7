"""All clients at once release what each would release by itself: `release`, with the client's own
streams, says what.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedmix import Exchange
from fedmix.core.rng import stream
from fedmix.data import FederatedData, HeldOut, Ragged
from fedmix.data.transforms import Images, Plain
from fedmix.exchange import MeanExchange, Means, Releases, release

Array = np.ndarray[Any, Any]
CLASSES = 3


def made(sizes: list[int], *, images: bool, seed: int = 0) -> FederatedData:
    """Clients whose rows lie scattered in the arrays, of small images or of floats of many
    magnitudes.
    """
    rng = np.random.default_rng(seed)
    total = sum(sizes)
    if images:
        x: Array = rng.integers(0, 256, (total, 2, 2, 1)).astype(np.uint8)
    else:
        x = (rng.standard_normal((total, 3)) * 10.0 ** rng.integers(-6, 6, (total, 3))).astype(
            np.float32
        )
    y = rng.integers(0, CLASSES, total)
    clients = Ragged.cut(rng.permutation(total), sizes)
    return FederatedData(
        x, y, clients, HeldOut(x[:1], y[:1]), CLASSES, Images((0.5,), (0.5,)) if images else Plain()
    )


def exchanged(data: FederatedData, how: Exchange, seed: int) -> Releases:
    mean = MeanExchange(how, seed, len(data.clients))
    mean.refresh(data, data.units)
    assert mean.releases is not None
    return mean.releases


def alone(
    data: FederatedData, how: Exchange, seed: int, k: int, *, epoch: int = 0, version: int = 0
) -> Means | None:
    """What client k releases."""
    rows = data.clients[k]
    y = data.targets(torch.from_numpy(data.y[rows]))
    streams = stream(seed, "split", k, epoch), stream(seed, "release-noise", k, version)
    return release(k, data.x[rows], y, how, data.units, *streams)


def same(one: Means | None, many: Means) -> bool:
    if one is None:
        return len(many.x) == 0
    return torch.equal(one.x, many.x) and torch.equal(one.y, many.y)


@given(
    sizes=st.lists(st.integers(1, 12) | st.sampled_from([400, 1024]), min_size=1, max_size=8),
    m=st.sampled_from(["all", 1, 3, 0.5]),
    split=st.sampled_from(["random", "class"]),
    noise=st.sampled_from([0.0, 0.3]),
    cutoff=st.integers(1, 6),
    images=st.booleans(),
    seed=st.integers(0, 2**40),
)
def test_all_at_once_is_one_by_one(
    sizes: list[int], m: Any, split: Any, noise: float, cutoff: int, images: bool, seed: int
) -> None:
    sizes = [*sizes, 7]  # so that somebody sends
    how = Exchange(m=m, split=split, noise=noise, cutoff=max(cutoff, 3) if m == 3 else cutoff)
    data = made(sizes, images=images)
    together = exchanged(data, how, seed)
    for k in range(len(sizes)):
        assert same(alone(data, how, seed, k), together.of(k))
    assert np.unique(together.owner).tolist() == [k for k, n in enumerate(sizes) if n >= how.cutoff]


def test_clients_larger_than_a_block() -> None:
    data, how = made([1500, 3, 900, 2600, 1, 1024], images=False), Exchange(m=0.5, noise=0.1)
    together = exchanged(data, how, 5)
    assert all(same(alone(data, how, 5, k), together.of(k)) for k in range(6))


@pytest.mark.parametrize("apart", [{}, {"label_clip": 0.5, "label_noise": 0.2}])
def test_all_clip_as_each_clips(apart: dict[str, Any]) -> None:
    """And by hand: an input and a label of norm 1 have √2 together; bound by ½, each has ½/√2."""
    data, how = made([5, 9, 4], images=False), Exchange(m=2, clip=0.5, noise=0.1, **apart)
    together = exchanged(data, how, 3)
    assert all(same(alone(data, how, 3, k), together.of(k)) for k in range(3))
    units = replace(data, x=np.eye(3, dtype=np.float32)[data.y])
    found = exchanged(units, Exchange(m=1, clip=0.5), 3)
    for values in (found.x, found.y):
        torch.testing.assert_close(values.norm(dim=1), torch.full((18,), 0.5 / math.sqrt(2)))


def test_clients_that_send_again_use_their_next_streams() -> None:
    data, how = made([9, 8, 7, 6], images=True), Exchange(m=3, noise=0.1)
    mean = MeanExchange(how, 2, 4)
    mean.refresh(data, data.units)
    mean.changed([3, 1])
    mean.refresh(data, data.units)
    assert mean.releases is not None
    for k in range(4):
        again = int(k in (1, 3))
        assert same(alone(data, how, 2, k, epoch=again, version=again), mean.releases.of(k))


def test_own_means_are_releases_without_cutoff_and_noise() -> None:
    data = made([2, 5, 9], images=True)
    together = exchanged(data, Exchange(m=2, source="own", cutoff=4, noise=0.5), 1)
    assert all(same(alone(data, Exchange(m=2), 1, k), together.of(k)) for k in range(3))


def test_hidden_states_agree_to_rounding() -> None:
    """A matrix product may round a row differently beside other rows."""
    data = made([5, 1, 12, 30, 2], images=True)
    weight = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))

    def encode(raw: Array) -> Tensor:
        return torch.tanh(data.units(raw).flatten(1) @ weight)

    mean = MeanExchange(Exchange(), 0, 5)
    mean.refresh(data, encode, every_round=True)
    assert mean.releases is not None
    for k in range(5):
        expected = encode(data.x[data.clients[k]]).mean(0, keepdim=True)
        torch.testing.assert_close(mean.releases.of(k).x, expected, rtol=1e-5, atol=1e-7)


# Releases as values


def releases(**of: list[float]) -> Releases:
    owner = np.concatenate([[int(name[1:])] * len(values) for name, values in of.items()])
    x = torch.tensor([[v] for values in of.values() for v in values])
    return Releases(owner, x, -x)


def test_a_clients_means_stay_in_order() -> None:
    both = Releases.joined([releases(k1=[*map(float, range(99))]), releases(k0=[-1.0])])
    assert both.x[:, 0].tolist() == list(range(-1, 99))


def test_join_and_leave_out() -> None:
    some, others = releases(k1=[1.0, 1.5], k4=[4.0]), releases(k0=[0.0], k2=[2.0, 2.5])
    both = Releases.joined([some, others])
    assert both.owner.tolist() == [0, 1, 1, 2, 2, 4]
    assert both.x[:, 0].tolist() == [0.0, 1.0, 1.5, 2.0, 2.5, 4.0]
    assert torch.equal(both.y, -both.x)
    rest = both.without(np.array([1, 2, 9]))
    assert (rest.owner.tolist(), rest.x[:, 0].tolist()) == ([0, 4], [0.0, 4.0])
    assert both.of(2).x[:, 0].tolist() == [2.0, 2.5]
    assert len(both.of(3).x) == 0


@pytest.mark.parametrize("chosen", [[], [2], [3, 0], [1, 1, 2]])
def test_rows_of_some_clients(chosen: list[int]) -> None:
    rows = Ragged.of([[4, 2], [0], [7, 8, 9], [1, 3]])
    taken = rows.take(np.array(chosen, np.int64))
    assert [taken[i].tolist() for i in range(len(taken))] == [rows[k].tolist() for k in chosen]
