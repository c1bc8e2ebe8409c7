"""Decoded arrays kept on disk: written once, whole or not at all, then memory-mapped."""

import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fedmix.core.errors import DataError
from fedmix.core.types import Array

FORMAT = 1  # to be raised when what a decoder writes changes


def location(cache: str | Path | None = None) -> Path:
    """The cache folder: `cache`, else $FEDMIX_CACHE, else ~/.cache/fedmix."""
    return Path(cache or os.environ.get("FEDMIX_CACHE") or "~/.cache/fedmix").expanduser()


def cached(
    name: str,
    sources: Sequence[Path],
    decode: Callable[[Path], None],
    cache: str | Path | None = None,
) -> dict[str, Array]:
    """What `decode(folder)` writes as .npy files; decoded anew if a source's name, size or time
    changed.

    They are mapped copy-on-write: torch warns about read-only arrays.
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
    """Decode into a folder beside, then rename it: a folder with the final name is always whole."""
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
    """A .npy file of known shape, written piece by piece.

    By plain writes: on a full disk they raise an error, where a page of a memory map would end the
    process.
    """
    kind = np.dtype(dtype)
    header = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)

        def write(piece: Array) -> None:
            file.write(np.ascontiguousarray(piece, kind).data)

        yield write


def save(path: Path, array: Array) -> None:
    """A whole .npy file."""
    with npy(path, array.dtype.str, array.shape) as write:
        write(array)
