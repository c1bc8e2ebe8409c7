"""The cache of decoded arrays is whole or absent, whatever interrupts; damaged files are named."""

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from fedmix.core.errors import DataError
from fedmix.data import cache, cifar10, femnist, shakespeare
from fedmix.data.cache import cached, npy, save
from tests.miniature import encoded, write_mirror, write_table


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.parquet"
    path.write_bytes(b"anything")
    return path


def decode(folder: Path) -> None:
    save(folder / "numbers.npy", np.arange(6).reshape(2, 3))
    save(folder / "names.npy", np.array(["a", "longer"]))


def forbidden(_: Path) -> None:
    raise AssertionError("decoded again")


def test_arrays_come_back_as_they_were(source: Path, tmp_path: Path) -> None:
    arrays = cached("set", [source], decode, tmp_path / "cache")
    assert arrays["numbers"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert arrays["names"].tolist() == ["a", "longer"]


def test_written_in_pieces(tmp_path: Path) -> None:
    with npy(tmp_path / "x.npy", "u1", (4, 2)) as write:
        write(np.ones((1, 2), np.int64))
        write(np.zeros((3, 4), np.uint8)[:, ::2])
    loaded = np.load(tmp_path / "x.npy")
    assert loaded.dtype == np.uint8
    assert loaded.tolist() == [[1, 1], [0, 0], [0, 0], [0, 0]]


def test_second_load_maps_and_does_not_decode(source: Path, tmp_path: Path) -> None:
    cached("set", [source], decode, tmp_path)
    again = cached("set", [source], forbidden, tmp_path)["numbers"]
    assert isinstance(again, np.memmap)
    torch.from_numpy(again)[0, 0] = 7  # neither warns nor reaches the file
    assert cached("set", [source], forbidden, tmp_path)["numbers"][0, 0] == 0


@pytest.mark.parametrize("change", ["size", "time", "name", "format"])
def test_a_changed_source_is_decoded_anew(
    source: Path, tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached("set", [source], decode, tmp_path)
    if change == "size":
        stat = source.stat()
        source.write_bytes(b"something else")
        os.utime(source, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    elif change == "time":
        os.utime(source, ns=(1, 1))
    elif change == "name":
        source = source.rename(source.with_name("renamed.parquet"))
    else:
        monkeypatch.setattr(cache, "FORMAT", cache.FORMAT + 1)
    with pytest.raises(AssertionError, match="decoded again"):
        cached("set", [source], forbidden, tmp_path)


def test_environment_names_the_folder(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDMIX_CACHE", str(tmp_path / "there"))
    cached("set", [source], decode)
    assert [p.name.split("-")[0] for p in (tmp_path / "there").iterdir()] == ["set"]
    monkeypatch.delenv("FEDMIX_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache.location() == tmp_path / "home" / ".cache" / "fedmix"


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, ValueError, DataError])
def test_an_interrupted_decode_leaves_nothing(
    source: Path, tmp_path: Path, interruption: type[BaseException]
) -> None:
    def interrupted(folder: Path) -> None:
        decode(folder)
        raise interruption

    with pytest.raises(interruption):
        cached("set", [source], interrupted, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


KILLED = """
import os, sys
from pathlib import Path
from fedmix.data.cache import cached, npy

def decode(folder):
    with npy(folder / "numbers.npy", "i8", (2, 3)) as write:
        os._exit(9)

cached("set", [Path(sys.argv[1])], decode, sys.argv[2])
"""


def test_what_a_killed_process_leaves_is_not_taken_for_whole(source: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(source), str(tmp_path / "cache")]
    assert subprocess.run(command, check=False).returncode == 9
    assert len(list((tmp_path / "cache").rglob("numbers.npy"))) == 1
    assert cached("set", [source], decode, tmp_path / "cache")["numbers"].shape == (2, 3)


def test_many_at_once_agree(source: Path, tmp_path: Path) -> None:
    gate, results = threading.Barrier(4), []

    def slow(folder: Path) -> None:
        decode(folder)
        gate.wait(10)  # all four have decoded before any renames

    def load() -> None:
        results.append(cached("set", [source], slow, tmp_path / "cache")["numbers"].sum())

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [15] * 4
    assert len(list((tmp_path / "cache").iterdir())) == 1


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if (
        os.geteuid() != 0
        or subprocess.run(command, capture_output=True, check=False).returncode != 0
    ):
        pytest.skip("mounting a small file system takes rights that this user lacks")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk(tiny_disk: Path, tmp_path: Path) -> None:
    mirror = write_mirror(tmp_path / "mirror", "cifar10")  # 600·3072 bytes decoded
    with pytest.raises(
        DataError,
        match=r"cifar10 into .*tiny \(No space left on device\); make room .*FEDMIX_CACHE",
    ):
        cifar10(root=mirror, cache=tiny_disk)
    assert list(tiny_disk.iterdir()) == []


def test_a_full_disk_without_rights_to_mount(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array_header_1_0", full)
    with pytest.raises(DataError, match="No space left on device"):
        cached("set", [source], decode, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_cache_that_cannot_be_a_folder(source: Path) -> None:
    with pytest.raises(DataError, match=r"Not a directory.*set FEDMIX_CACHE"):
        cached("set", [source], decode, source)


def test_a_damaged_cache(source: Path, tmp_path: Path) -> None:
    cached("set", [source], decode, tmp_path / "cache")
    (array,) = (tmp_path / "cache").rglob("numbers.npy")
    array.write_bytes(array.read_bytes()[:-8])
    with pytest.raises(DataError, match=r"set-.* cannot be read .*; delete this folder"):
        cached("set", [source], forbidden, tmp_path / "cache")


def test_a_source_that_vanished(source: Path, tmp_path: Path) -> None:
    source.unlink()
    with pytest.raises(DataError, match=r"source.parquet cannot be read \(No such file"):
        cached("set", [source], decode, tmp_path)


PIXELS = np.zeros((3, 32, 32, 3), np.uint8)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def scramble(path: Path) -> None:
    """Damage inside the data, with the footer whole."""
    data = bytearray(path.read_bytes())
    data[100 : len(data) // 2] = b"\xff" * (len(data) // 2 - 100)
    path.write_bytes(data)


def replace(content: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(content)

    return write


def columns(**values: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        write_table(path.parents[4], "uoft-cs/cifar10", "plain_text", "train", values)

    return write


DAMAGE: list[tuple[str, Callable[[Path], None]]] = [
    ("no whole parquet file", truncate),
    ("no whole parquet file", replace(b"<html>sign in first</html>")),
    ("no whole parquet file", replace(b"")),
    ("damaged|cannot be decoded", scramble),
    ("there is no column 'label', only img", columns(img=encoded(PIXELS))),
    ("there is no column 'img', only label", columns(label=[1, 2, 3])),
    ("label 10 is outside 0..9", columns(img=encoded(PIXELS), label=[0, 10, 1])),
    ("label -1 is outside 0..9", columns(img=encoded(PIXELS), label=[0, -1, 1])),
    ("labels are string", columns(img=encoded(PIXELS), label=["0", "1", "2"])),
    ("labels are int64 with 1 missing", columns(img=encoded(PIXELS), label=[0, None, 2])),
    ("images are list", columns(img=[[1], [2], [3]], label=[0, 1, 2])),
    ("an image is 28x32, not 32x32", columns(img=encoded(PIXELS[:, :, 2:30]), label=[0, 1, 2])),
    (
        "an image cannot be decoded",
        columns(img=pa.array([{"bytes": b"no PNG", "path": None}]), label=[0]),
    ),
    (
        "an image cannot be decoded",
        columns(img=pa.array([{"bytes": None, "path": "cat.png"}]), label=[0]),
    ),
    (
        "an image cannot be decoded",
        columns(
            img=pa.array([{"bytes": encoded(PIXELS)[0]["bytes"].as_py()[:60], "path": None}]),
            label=[0],
        ),
    ),
    ("the table has no rows", columns(img=encoded(PIXELS[:0]), label=pa.array([], pa.int64()))),
]


@pytest.mark.parametrize(
    ("words", "damage"), DAMAGE, ids=[f"{i} {words}" for i, (words, _) in enumerate(DAMAGE)]
)
def test_damaged_images(words: str, damage: Callable[[Path], None], tmp_path: Path) -> None:
    mirror = write_mirror(tmp_path / "mirror", "cifar10")
    path = mirror / "uoft-cs/cifar10/plain_text/train/0000.parquet"
    damage(path)
    with pytest.raises(
        DataError, match=rf"train/0000.parquet: .*({words}).*; delete the file and fetch it again"
    ) as caught:
        cifar10(root=mirror, cache=tmp_path / "cache")
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_damaged_file_behind_a_link(tmp_path: Path) -> None:
    """The hub's client links to what it has downloaded; a deleted link would be made again."""
    mirror = write_mirror(tmp_path / "mirror", "cifar10")
    link = mirror / "uoft-cs/cifar10/plain_text/train/0000.parquet"
    truncate(link)
    link.symlink_to(link.rename(tmp_path / "blob"))
    with pytest.raises(
        DataError, match=r"train/0000.parquet: .*; delete .*/blob and fetch it again"
    ):
        cifar10(root=mirror, cache=tmp_path / "cache")


def test_damaged_text(tmp_path: Path) -> None:
    for x, y in (["a" * 79], ["b"]), (["a" * 80], ["bc"]), (["a" * 80], [None]):
        write_table(
            tmp_path,
            "flwrlabs/shakespeare",
            "default",
            "train",
            {"character_id": ["A"], "x": x, "y": y},
        )
        with pytest.raises(DataError, match=r"0000.parquet: a text is not of (80|1) letters"):
            shakespeare(1, root=tmp_path, cache=tmp_path / "cache")


def test_owners_that_are_missing(tmp_path: Path) -> None:
    images = encoded(np.zeros((2, 28, 28), np.uint8))
    table = {"image": images, "writer_id": ["a", None], "character": [1, 2]}
    write_table(tmp_path, "flwrlabs/femnist", "default", "train", table)
    with pytest.raises(DataError, match="1 rows have no 'writer_id'"):
        femnist(1, root=tmp_path, cache=tmp_path / "cache")
