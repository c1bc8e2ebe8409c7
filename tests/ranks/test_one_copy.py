"""Ranks of one machine hold the samples once, and train as if each had its own."""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest

from fedmix.core.ranks import Ranks
from fedmix.data.federated import FederatedData, HeldOut
from fedmix.data.ragged import Ragged
from fedmix.training.one_copy import mapped, one_copy


class Threads(Ranks):
    """Ranks that are threads of this process; they meet at a barrier."""

    def __init__(self, rank: int, barrier: Barrier, said: dict[int, Any]) -> None:
        super().__init__(rank, barrier.parties)
        self.barrier, self.said = barrier, said

    def agree(self, mine: object = None) -> list[Any]:
        self.said[self.rank] = mine
        self.barrier.wait(60)
        found = [self.said[rank] for rank in range(self.count)]
        self.barrier.wait(60)
        return found


def data(rank: int = 0) -> FederatedData:
    """Samples of 2 MB, made anew by each rank; a test set that is too small to share."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2048, 128)), rng.integers(0, 4, 2048)
    return FederatedData(
        x, y, Ragged.of([np.arange(2000 - rank), np.arange(2000, 2048)]), HeldOut(x[:5], y[:5]), 4
    )


def together(made: list[FederatedData]) -> list[FederatedData]:
    barrier, said = Barrier(len(made)), dict[int, Any]()
    ranks = [Threads(rank, barrier, said) for rank in range(len(made))]
    with ThreadPoolExecutor(len(made)) as pool:
        return list(pool.map(one_copy, made, ranks))


def test_large_arrays_are_one_file_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    first, second = together([data(), data()])
    assert not list(tmp_path.iterdir())
    for found in (first, second):
        assert mapped(found.x)
        assert found.held_out.x.base is None  # a view would keep the whole of x in memory
        np.testing.assert_array_equal(found.x, data().x)
    names = {str(line.split()[-2]) for line in maps() if str(tmp_path) in line}
    assert len(names) == 1  # both mappings are of one file
    first.x[0] = 0.0  # and what one writes, the other does not see
    np.testing.assert_array_equal(second.x, data().x)


def maps() -> list[str]:
    return Path("/proc/self/maps").read_text().splitlines()


def test_what_is_mapped_from_a_file_stays(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", data().x)
    held = replace(data(), x=np.load(tmp_path / "x.npy", mmap_mode="c"))
    assert all(found is held for found in together([held, held]))


def test_without_room_each_keeps_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    held = data()
    for found in together([held, held]):
        assert found.x is held.x
