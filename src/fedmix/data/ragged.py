"""Rows by client, as two flat arrays."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedmix.core.errors import BadInput
from fedmix.core.types import Array


@dataclass(frozen=True)
class Ragged:
    """Row numbers by client, as one flat array with offsets: 100,000 clients need two arrays.

    Client k holds `flat[offsets[k] : offsets[k + 1]]`; both arrays are int64.

    >>> rows = Ragged.of([[4, 2], [0]])
    >>> len(rows), rows[0].tolist(), rows.sizes.tolist()
    (2, [4, 2], [2, 1])
    """

    flat: Array
    offsets: Array

    @staticmethod
    def of(groups: Iterable[Sequence[int] | Array]) -> "Ragged":
        """Make one from a list of row numbers per client; raise BadInput if one is no such list."""
        arrays = [row_numbers(client, g) for client, g in enumerate(groups)]
        return Ragged.cut(
            np.concatenate([np.empty(0, np.int64), *arrays]), [len(a) for a in arrays]
        )

    @staticmethod
    def cut(flat: Array, sizes: Sequence[int] | Array) -> "Ragged":
        """Cut an array into consecutive parts of these sizes."""
        return Ragged(flat, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))

    @staticmethod
    def by_owner(owner: Array, count: int) -> "Ragged":
        """Group the positions of `owner` by its values, integers in [0, count), in order."""
        return Ragged.cut(np.argsort(owner, kind="stable"), np.bincount(owner, minlength=count))

    @cached_property
    def sizes(self) -> Array:
        """Number of rows of each client."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __repr__(self) -> str:
        return f"Ragged({len(self)} clients, {len(self.flat)} rows)"

    def __getitem__(self, client: int) -> Array:
        if not 0 <= client < len(self):
            raise IndexError(f"client {client} of {len(self)}")
        return self.flat[self.offsets[client] : self.offsets[client + 1]]

    @property
    def owner(self) -> Array:
        """The client of each position of the flat array."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def with_rows(self, changed: Mapping[int, Array]) -> "Ragged":
        """Copy with other rows for some clients."""
        sizes, pieces, end = self.sizes.copy(), [], 0
        for client in sorted(changed):
            pieces += [self.flat[end : self.offsets[client]], changed[client]]
            sizes[client], end = len(changed[client]), self.offsets[client + 1]
        return Ragged.cut(np.concatenate([*pieces, self.flat[end:]]), sizes)

    def take(self, clients: Array) -> "Ragged":
        """The rows of these clients, in the order given."""
        sizes = self.sizes[clients]
        chosen = Ragged.cut(np.empty(0, np.int64), sizes)
        shift = self.offsets[clients] - chosen.offsets[:-1]
        return replace(
            chosen, flat=self.flat[np.arange(chosen.offsets[-1]) + np.repeat(shift, sizes)]
        )


def row_numbers(client: int, given: Sequence[int] | Array) -> Array:
    """Convert row numbers to int64; refuse masks and fractions, which would become other rows."""
    try:
        rows = np.asarray(given)
    except ValueError as error:
        raise BadInput(
            f"client {client}: its rows are lists of different lengths; give one list of row "
            "numbers"
        ) from error
    if rows.ndim != 1 or (len(rows) and not np.issubdtype(rows.dtype, np.integer)):
        raise BadInput(
            f"client {client}: its rows are {rows.dtype} of shape {rows.shape}; "
            "give a list of row numbers (np.flatnonzero turns a mask into one)"
        )
    return rows.astype(np.int64)
