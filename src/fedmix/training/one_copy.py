"""The samples of a federation, which the ranks of one machine hold once instead of each.

The first rank of a machine writes large arrays to files, all map them, and the files' names are
removed: what they hold is shared, and gone when the last rank ends.
"""

import os
import socket
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedmix.core.ranks import Ranks
from fedmix.core.types import Array
from fedmix.data.federated import FederatedData

LEAST = 1 << 20  # bytes of an array that is worth a file


def one_copy(data: FederatedData, ranks: Ranks) -> FederatedData:
    """Return equal data, of which the ranks of a machine hold one copy; all ranks call it.

    Arrays that are small or mapped from a file already stay as they are, and so do all where there
    is no room for a file (in `TMPDIR`, by default /tmp).

    Args:
        data: Data that are the same on all ranks.
        ranks: The ranks.
    """
    test = data.held_out
    x, y, test_x, test_y = _shared([data.x, data.y, test.x, test.y], ranks)
    if x is data.x and test_x is test.x and y is data.y and test_y is test.y:
        return data
    return replace(data, x=x, y=y, test=replace(test, x=test_x, y=test_y))


def _shared(arrays: Sequence[Array], ranks: Ranks) -> list[Array]:
    found = list(arrays)
    wanted = [i for i, array in enumerate(arrays) if array.nbytes >= LEAST and not mapped(array)]
    if ranks.agree(wanted) != [wanted] * ranks.count or not wanted:
        return found
    machines = ranks.agree(_machine())
    first = machines.index(machines[ranks.rank])
    mine = _written([arrays[i] for i in wanted]) if first == ranks.rank else []
    paths = ranks.agree(mine)[first]
    with suppress(OSError):  # a container of this machine, whose files are others
        for i, path in zip(wanted, paths or [], strict=False):
            found[i] = np.load(path, mmap_mode="c")
    # a small part of a large array would keep all of it in memory
    found = [a.copy() if a.nbytes < LEAST and not mapped(a) else a for a in found]
    ranks.agree()  # all have mapped them
    for path in mine or ():
        path.unlink(missing_ok=True)
    return found


def mapped(array: Array) -> bool:
    """Whether an array is a part of a memory-mapped file."""
    part: object = array
    while isinstance(part, np.ndarray) and not isinstance(part, np.memmap):
        part = part.base
    return isinstance(part, np.memmap)


def _machine() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{boot.read_text() if boot.is_file() else ''} {socket.gethostname()}"


def _written(arrays: Sequence[Array]) -> list[Path] | None:
    """Write arrays to new files of this user; None if there is no room.

    It uses plain writes: on a full disk they raise an error, while writing to a memory map would
    kill the process.
    """
    paths: list[Path] = []
    try:
        for array in arrays:
            number, name = tempfile.mkstemp(prefix="fedmix-", suffix=".npy")
            paths.append(Path(name))
            with os.fdopen(number, "wb") as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
    except OSError:
        for path in paths:
            path.unlink(missing_ok=True)
        return None
    return paths
