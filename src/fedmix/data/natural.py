"""Data whose samples have owners, such as writers or speakers. Each owner is a client."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedmix.core.errors import BadInput
from fedmix.core.rng import stream
from fedmix.core.types import Array
from fedmix.data.cache import save
from fedmix.data.federated import FederatedData, HeldOut
from fedmix.data.ragged import Ragged
from fedmix.data.tables import batches, damaged, reading
from fedmix.data.transforms import Transform

LONGEST = 200  # letters of a name; in an array all take as much room as the longest


def save_owners(files: Sequence[Path], folder: Path, column: str) -> None:
    """Number the strings of a column in sorted order.

    Writes the strings to names.npy and the number of each row's string to owner.npy.
    """
    seen: dict[str, int] = {}
    pieces = []
    for path, batch in batches(files, [column]):
        values = batch.column(column)
        if values.null_count:
            raise damaged(path, f"{values.null_count} rows have no {column!r}")
        with reading(path):
            coded = values if hasattr(values, "indices") else values.dictionary_encode()
            found = [str(name) for name in coded.dictionary.to_pylist()]
        if max(map(len, found), default=0) > LONGEST:
            raise damaged(path, f"a name in {column!r} has more than {LONGEST} letters")
        here = np.array([seen.setdefault(name, len(seen)) for name in found])
        pieces.append(here[coded.indices.to_numpy(zero_copy_only=False)])
    if not pieces:
        raise damaged(files[0], "the table has no rows, though it says that it has")
    names = np.array(list(seen))
    order = np.argsort(names)
    save(folder / "names.npy", names[order])
    save(folder / "owner.npy", np.argsort(order)[np.concatenate(pieces)])


def choose(eligible: Array, clients: int, seed: int, name: str) -> Array:
    """Draw `clients` of the owners for whom `eligible` is true, by `seed`; return them sorted.

    Raises BadInput if there are too few.
    """
    candidates = np.flatnonzero(eligible)
    if not 1 <= clients <= len(candidates):
        raise BadInput(
            f"{name}: {clients} clients, but {len(candidates)} of {len(eligible)} have enough "
            f"samples; use 1 to {len(candidates)} clients or a lower `least`"
        )
    return np.sort(stream(seed, "owners").choice(candidates, clients, replace=False))


def gather(
    x: Array, y: Array, train: Ragged, test: Ragged, classes: int, transform: Transform, name: str
) -> FederatedData:
    """Copy these rows in the clients' order, so that no test row is among the training samples."""
    mine, theirs = (Ragged(np.arange(len(r.flat)), r.offsets) for r in (train, test))
    return FederatedData(
        x[train.flat],
        y[train.flat],
        mine,
        HeldOut(x[test.flat], y[test.flat], theirs),
        classes,
        transform,
        name=name,
    )
