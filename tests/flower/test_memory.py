"""The memory and files of a server, looked through while a real federation runs: no client's mean
is there if sums are secure.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import one_hot

from fedmix.exchange import Exchange, release
from fedmix.flower.family import descendants
from fedmix.flower.processes import Link
from fedmix.flower.secagg import QUANTA, largest
from tests.flower.processes import CLIENTS, Federated

pytestmark = pytest.mark.federation
HOW: dict[str, Any] = {"m": "all", "average": 2, "clip": 4.0}
PAGE = 4096
Array = np.ndarray[Any, Any]


def means(federation: Federated) -> Array:
    """(clients, 16): a part of each client's mean, from pixels that differ."""
    found = []
    for client in range(CLIENTS):
        with np.load(federation.data / f"client-{client}.npz") as arrays:
            x, y = arrays["x"], one_hot(torch.from_numpy(arrays["y"]), 10).float()
        rng = np.random.default_rng(0)
        released = release(client, x, y, Exchange(**HOW), torch.from_numpy, rng, rng)
        assert released is not None
        found.append(released.x[0, 18:34].numpy())
    return np.stack(found)


def memory(pid: int) -> Iterator[bytes]:
    """What a process has written, a mapping at a time, without pages of zeros."""
    with contextlib.suppress(OSError), Path(f"/proc/{pid}/mem").open("rb", buffering=0) as file:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            where, kind = line.split()[:2]
            start, end = (int(word, 16) for word in where.split("-"))
            if kind.startswith("rw"):
                with contextlib.suppress(OSError):
                    file.seek(start)
                    pages = np.frombuffer(file.read(end - start), np.uint64).reshape(-1, PAGE // 8)
                    yield pages[pages.any(1)].tobytes()


def found_in(block: bytes, mean: Array) -> bool:
    """A mean's values in float32 or float64, or the first three as the integers that are masked,
    each rounded up or down.
    """
    if mean.tobytes() in block or mean.astype(np.float64).tobytes() in block:
        return True
    bound = largest(Exchange(**HOW))
    whole = np.floor((mean[:3].astype(np.float64) + bound) * QUANTA / (2 * bound)).astype(np.int64)
    for first in (whole[0].tobytes(), (whole[0] + 1).tobytes()):
        at = block.find(first)
        while at >= 0:
            there = np.frombuffer(block[at : at + 24].ljust(24), np.int64)
            if np.isin(there - whole, (0, 1)).all():
                return True
            at = block.find(first, at + 1)
    return False


def seen(tmp_path: Path, **more: Any) -> tuple[list[bool], list[bool], Federated]:
    """Whether each client's mean was ever in the memory of the SuperLink and the ServerApp, or in
    their files at the end.
    """
    with Link(tmp_path / "link", env={"OMP_NUM_THREADS": "1"}) as link:
        federation = Federated(
            tmp_path,
            link,
            **{f"exchange.{key}": value for key, value in (HOW | more).items()},
            rounds=2,
        )
        own = means(federation)
        for client in range(CLIENTS):
            federation.node(client)
        federation.run()
        held, looks, read = [False] * CLIENTS, 0, 0
        while link.processes["run"].poll() is None:
            superlink = link.processes["superlink"].pid
            for pid in [superlink, *descendants(superlink)]:
                for block in memory(pid):
                    read += len(block)
                    held = [
                        before or found_in(block, mean)
                        for before, mean in zip(held, own, strict=True)
                    ]
            looks += 1
        federation.finish()
        print(f"looked {looks} times, at {read / 1e9:.1f} GB")
    files = [
        path.read_bytes()
        for folder in (link.folder, federation.run_folder)
        for path in folder.rglob("*")
        if path.is_file()
    ]
    return held, [any(found_in(content, mean) for content in files) for mean in own], federation


def test_without_it_every_mean_is_found(tmp_path: Path) -> None:
    held, kept, _ = seen(tmp_path)
    assert held == [True] * CLIENTS
    assert kept == [True] * CLIENTS


def test_what_is_looked_for_is_found() -> None:
    """By hand: 0.5, 1 and 0.25 within ±4 are 9, 10 and 8.5 sixteenths of 2^22."""
    mean, sixteenth = np.array([0.5, 1.0, 0.25], np.float32), 2**18
    masked = np.array([9 * sixteenth + 1, 10 * sixteenth, 17 * sixteenth // 2], np.int64)
    for there in (mean.tobytes(), mean.astype(np.float64).tobytes(), masked.tobytes()):
        assert found_in(b"abc" + masked[:1].tobytes() + there + b"abc", mean)
    assert not found_in(masked[:2].tobytes() + b"abc", mean)
    assert not found_in((masked + 3).tobytes(), mean)


def test_with_it_none_is(tmp_path: Path) -> None:
    held, kept, federation = seen(tmp_path, secure="secagg+")
    assert held == [False] * CLIENTS
    assert kept == [False] * CLIENTS
    assert federation.rounds()[-1]["means_up"] == CLIENTS * 8 * (
        64 + 10
    )  # each took part in one sum
