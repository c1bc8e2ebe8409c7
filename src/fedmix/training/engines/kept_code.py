"""Compiled steps that are kept from one start to the next, in fedmix's cache folder.

What is in there is torch's own: a step is found by its traced operations, the versions and the
machine's kind, so that another step is never taken for it. All of it can be made again.
"""

import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from fedmix.data.cache import location

LARGEST = 1 << 30  # bytes that are kept; the code of LeNet-5's step takes some 1 MB
RESTS = 3600.0  # seconds after which nobody is writing or about to read a file


def folder() -> Path:
    """The folder of compiled code."""
    return location() / "compiled"


def keep() -> None:
    """Let torch keep what it compiles in this folder, unless the user named another.

    Where nothing can be written there, it stays with torch's own folder.
    """
    with suppress(OSError):
        folder().mkdir(parents=True, exist_ok=True)
        if os.access(folder(), os.W_OK):
            os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder()))


def probe_once() -> None:
    """Let torch probe which vector instructions work at the first start alone.

    For each kind it builds a library, keeps that, and loads it in a process of its own, in every
    process that compiles: some 0.6 s of a core.
    """
    from torch._inductor.cpu_vec_isa import VecISA

    probe = VecISA.check_build
    if probe.__module__ == __name__:
        return

    def check_build(kind: Any, code: str) -> bool:
        what = repr((torch.__version__, torch.__file__, kind._arch_flags, code))
        mark = folder() / "probed" / hashlib.sha256(what.encode()).hexdigest()
        if mark.is_file():
            return True
        works = probe(kind, code)
        if works:
            with suppress(OSError):
                mark.parent.mkdir(parents=True, exist_ok=True)
                mark.touch()
        return works

    VecISA.check_build = check_build  # type: ignore[assignment]


def size() -> tuple[int, int]:
    """Return the number of files, and their bytes."""
    sizes = [stat.st_size for _, stat in _files()]
    return len(sizes), sum(sizes)


def trim(largest: int = LARGEST) -> None:
    """Remove what was not used for the longest, down to half the limit, if there is more."""
    files = sorted(_files(), key=lambda file: max(file[1].st_mtime, file[1].st_atime))
    total = sum(stat.st_size for _, stat in files)
    if total <= largest:
        return
    for path, stat in files:
        if total <= largest // 2 or time.time() - max(stat.st_mtime, stat.st_atime) < RESTS:
            return
        with suppress(OSError):  # another process was first
            path.unlink()
            total -= stat.st_size


def clear() -> None:
    """Remove all of it."""
    shutil.rmtree(folder(), ignore_errors=True)


def _files() -> Iterator[tuple[Path, os.stat_result]]:
    for path in folder().rglob("*"):
        with suppress(OSError):
            if path.is_file() and not path.is_symlink():
                yield path, path.stat()
