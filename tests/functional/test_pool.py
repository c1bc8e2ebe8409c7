"""Pools: joined, drawn from, written and read."""

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedmix import BadInput
from fedmix.functional import MeanPool


def pool(first: int, count: int, classes: int = 2) -> MeanPool:
    """Means whose values say which they are: first, first + 1, ..."""
    x = torch.arange(first, first + count, dtype=torch.float32)
    return MeanPool(x.view(-1, 1, 1).expand(-1, 2, 3), x.view(-1, 1).expand(-1, classes))


def numbers(values: torch.Tensor) -> list[int]:
    return sorted(values[:, 0].flatten(1)[:, 0].int().tolist())


def test_merging_keeps_every_mean() -> None:
    joined = MeanPool.merge([pool(0, 3), pool(10, 2)])
    assert numbers(joined.x) == [0, 1, 2, 10, 11]
    assert torch.equal(joined.x[:, 0, 0], joined.y[:, 0])
    torch.manual_seed(0)
    orders = {tuple(MeanPool.merge([pool(0, 3)]).y[:, 0].tolist()) for _ in range(40)}
    assert len(orders) == 6  # every order of three


def test_merging_averages_as_a_server() -> None:
    """Seven means in threes: one of 3 and one of 4, which the remainder joins."""
    joined = MeanPool.merge([pool(0, 3), pool(3, 4)], average=3)
    assert len(joined) == 2
    assert float((joined.y[:, 0] * torch.tensor([3.0, 4.0])).sum()) == pytest.approx(21.0)
    with pytest.raises(BadInput, match="average=8 is more than the 7 means"):
        MeanPool.merge([pool(0, 7)], average=8)


def test_drawing() -> None:
    entries = pool(0, 4)
    seen = torch.zeros(4)
    for _ in range(400):
        x, y = entries.draw(1)
        assert x.shape == (1, 2, 3)
        assert torch.equal(x[:, 0, 0], y[:, 0])
        seen[int(y[0, 0])] += 1
    assert (seen > 60).all()
    x, y = entries.draw(32)
    assert (x.shape, y.shape) == ((32, 2, 3), (32, 2))
    again = [entries.draw(9, generator=torch.Generator().manual_seed(3))[1] for _ in range(2)]
    assert torch.equal(*again)


def test_own_means_are_left_out() -> None:
    mine = pool(0, 3)
    joined = MeanPool.from_bytes(MeanPool.merge([mine, pool(5, 2)]).to_bytes())
    assert set(numbers(joined.draw(200, exclude=mine)[0])) == {5, 6}
    assert numbers(joined.without(mine).x) == [5, 6]
    copied = pickle.loads(pickle.dumps(joined))  # as processes that load data do
    assert set(numbers(copied.draw(200, exclude=mine)[0])) == {5, 6}
    with pytest.raises(BadInput, match="every mean of this pool is excluded"):
        mine.draw(1, exclude=joined)


def test_files(tmp_path: Path) -> None:
    written = pool(0, 4)
    written.save(tmp_path / "means.npz")
    for read in (
        MeanPool.load(tmp_path / "means.npz"),
        MeanPool.from_bytes(written.to_bytes()),
    ):
        assert torch.equal(read.x, written.x)
        assert torch.equal(read.y, written.y)
    with np.load(tmp_path / "means.npz") as plain:  # anyone's numpy reads it
        assert sorted(plain) == ["x", "y"]
    with pytest.raises(BadInput, match=r"none\.npz cannot be read: No such file"):
        MeanPool.load(tmp_path / "none.npz")
    with pytest.raises(BadInput, match=r"a\.npz cannot be written: No such file"):
        written.save(tmp_path / "nowhere" / "a.npz")


def archive(how: Any = np.savez, **arrays: Any) -> bytes:
    file = io.BytesIO()
    how(file, **arrays)
    return file.getvalue()


F32 = np.zeros((2, 3), np.float32)
ROTTEN = {
    "nothing": b"",
    "text": b"means",
    "a pickle": pickle.dumps([F32, F32]),
    "objects": archive(x=np.array([{}, 1], object), y=F32),
    "cut off": archive(x=F32, y=F32)[:-30],
    "one array": archive(x=F32),
    "three arrays": archive(x=F32, y=F32, z=F32),
    "compressed": archive(np.savez_compressed, x=F32, y=F32),
    "whole numbers": archive(x=F32.astype(int), y=F32),
    "lengths": archive(x=F32, y=F32[:1]),
    "no rows": archive(x=F32[:0], y=F32[:0]),
    "not a number": archive(x=F32 * np.nan, y=F32),
    "shape": archive(x=F32, y=F32[:, 0]),
}


@pytest.mark.parametrize("name", ROTTEN)
def test_what_others_send_is_checked(name: str) -> None:
    with pytest.raises(BadInput) as error:
        MeanPool.from_bytes(ROTTEN[name])
    assert "\n" not in str(error.value)


def test_every_broken_byte() -> None:
    """A changed byte gives other means, or BadInput."""
    good = pool(0, 2).to_bytes()
    for place in range(0, len(good), 3):
        bad = bytearray(good)
        bad[place] ^= 0xFF
        try:
            read = MeanPool.from_bytes(bytes(bad))
        except BadInput:
            continue
        assert torch.isfinite(read.x).all()


def test_a_header_that_promises_too_much() -> None:
    """A shape of 10¹² values needs no memory before it is refused."""
    file, header = io.BytesIO(), io.BytesIO()
    shape = {"descr": "<f4", "fortran_order": False, "shape": (10**6, 10**6)}
    np.lib.format.write_array_header_1_0(header, shape)
    with zipfile.ZipFile(file, "w") as parts:
        for name in ("x.npy", "y.npy"):
            parts.writestr(name, header.getvalue())
    with pytest.raises(BadInput, match="these are no means"):
        MeanPool.from_bytes(file.getvalue())


def test_refused() -> None:
    with pytest.raises(BadInput, match=r"these pools do not fit.*classes="):
        MeanPool.merge([pool(0, 1), pool(0, 1, classes=3)])
    with pytest.raises(BadInput, match="one pool at least"):
        MeanPool.merge([])
    with pytest.raises(BadInput, match="`pools` is of type NoneType; give MeanPools"):
        MeanPool.merge(None)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="`pools` is of type bytes"):
        MeanPool.merge([pool(0, 1), b""])  # type: ignore[list-item]
    with pytest.raises(BadInput, match="n=0 must be at least 1"):
        pool(0, 1).draw(0)
    with pytest.raises(BadInput, match="`generator` is of type Generator; give"):
        pool(0, 1).draw(1, generator=np.random.default_rng(0))  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="`data` is of type str"):
        MeanPool.from_bytes("means")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="`exclude` is of type int"):
        pool(0, 1).draw(1, exclude=3)  # type: ignore[arg-type]
