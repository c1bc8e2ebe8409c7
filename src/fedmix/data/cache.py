"""Cache of decoded arrays on disk: written once and atomically, then memory-mapped."""

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from fedmix.core.errors import DataError
from fedmix.core.types import Array

FORMAT = 1  # raise it when what a decoder writes changes


def location(cache: str | Path | None = None) -> Path:
    """The cache folder: `cache`, else $FEDMIX_CACHE, else ~/.cache/fedmix."""
    return Path(cache or os.environ.get("FEDMIX_CACHE") or "~/.cache/fedmix").expanduser()


def cached(
    name: str,
    sources: Sequence[Path],
    decode: Callable[[Path], None],
    cache: str | Path | None = None,
) -> dict[str, Array]:
    """Return the arrays that `decode` writes, from the cache if they are there.

    Arrays are memory-mapped copy-on-write, since torch warns about read-only arrays.

    Args:
        name: Name of the data set, the start of the folder's name.
        sources: Source files. If the name, size or modification time of one changes, they are
            decoded again.
        decode: Function that writes .npy files into the folder that it is given.
        cache: The cache folder; see `location`.

    Returns:
        The arrays by file name, without the ending.

    Raises:
        DataError: A source or the cache cannot be read, or the cache cannot be written.
    """
    folder = location(cache) / f"{name}-{_fingerprint(sources)}"
    if not folder.is_dir():
        _build(name, folder, decode)
    try:
        return {path.stem: np.load(path, mmap_mode="c") for path in sorted(folder.glob("*.npy"))}
    except (OSError, ValueError) as error:
        raise DataError(
            f"the cached arrays in {folder} cannot be read ({error}); delete this folder"
        ) from error


def sizes(name: str, cache: str | Path | None = None) -> tuple[int, int]:
    """Return how many bytes of a data set are kept: downloaded, and decoded.

    Args:
        name: Name of the data set.
        cache: The cache folder; see `location`.
    """
    root, files = location(cache), set[Path]()
    for record in root.glob(f"hub/*/{name}/*/*.json"):  # hub/REPO/CONFIG/SPLIT.json, see hub.py
        with suppress(OSError, ValueError, AttributeError):
            files |= set(map(Path, json.loads(record.read_text()).keys()))
    decoded = [
        path for folder in root.glob(f"{name}-{'[0-9a-f]' * 16}") for path in folder.iterdir()
    ]
    return _bytes(files), _bytes(decoded)


def _bytes(files: Iterable[Path]) -> int:
    total = 0
    for path in files:
        with suppress(OSError):  # it was removed
            total += path.stat().st_size
    return total


def _fingerprint(sources: Sequence[Path]) -> str:
    digest = hashlib.sha256(f"format {FORMAT}".encode())
    for path in sources:
        try:
            stat = path.stat()
        except OSError as error:
            raise DataError(f"{path} cannot be read ({error.strerror}); fetch it again") from error
        digest.update(f"\n{'/'.join(path.parts[-3:])} {stat.st_size} {stat.st_mtime_ns}".encode())
    return digest.hexdigest()[:16]


def _build(name: str, folder: Path, decode: Callable[[Path], None]) -> None:
    """Decode into a temporary folder, then rename it, so that `folder` is always complete."""
    work = folder.with_name(f".{folder.name}-{uuid.uuid4().hex}")
    try:
        work.mkdir(parents=True)
        decode(work)
        try:
            work.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was first, with the same arrays
                raise
    except OSError as error:
        raise DataError(
            f"cannot write the decoded {name} into {folder.parent} ({error.strerror or error}); "
            "make room there or set FEDMIX_CACHE to another folder"
        ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def npy(path: Path, dtype: str, shape: tuple[int, ...]) -> Iterator[Callable[[Array], None]]:
    """Open a .npy file of known shape and yield a function that writes it piece by piece.

    It uses plain writes: on a full disk they raise an error, while writing to a memory map would
    kill the process.
    """
    kind = np.dtype(dtype)
    header = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)

        def write(piece: Array) -> None:
            file.write(np.ascontiguousarray(piece, kind).data)

        yield write


def save(path: Path, array: Array) -> None:
    """Write a whole array to a .npy file."""
    with npy(path, array.dtype.str, array.shape) as write:
        write(array)
