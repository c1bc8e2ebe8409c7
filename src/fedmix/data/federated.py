"""Data of many clients: arrays that are shared, and for each client the rows that are its own."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmix.data.transforms import Plain, Transform, one_hot
from fedmix.errors import BadInput

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Ragged:
    """Rows by client, as one flat array with offsets, so that 100,000 clients cost two arrays.

    >>> rows = Ragged.of([[4, 2], [0]])
    >>> len(rows), rows[0].tolist(), rows.sizes.tolist()
    (2, [4, 2], [2, 1])
    """

    flat: Array
    offsets: Array

    @staticmethod
    def of(groups: Iterable[Sequence[int] | Array]) -> "Ragged":
        arrays = [_row_numbers(client, np.asarray(g)) for client, g in enumerate(groups)]
        flat = np.concatenate(arrays) if arrays else np.empty(0, np.int64)
        return Ragged(flat, np.concatenate([[0], np.cumsum([len(a) for a in arrays])]).astype(np.int64))

    @staticmethod
    def by_owner(owner: Array, count: int) -> "Ragged":
        """Group the positions of `owner`, an array of integers in [0, count), by its value, in order."""
        sizes = np.bincount(owner, minlength=count)
        return Ragged(np.argsort(owner, kind="stable"), np.concatenate([[0], np.cumsum(sizes)]))

    @property
    def sizes(self) -> Array:
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int) -> Array:
        if not 0 <= client < len(self):
            raise IndexError(f"client {client} of {len(self)}")
        return self.flat[self.offsets[client] : self.offsets[client + 1]]


def _row_numbers(client: int, rows: Array) -> Array:
    """Masks and fractions would turn into other rows without a word."""
    if rows.ndim != 1 or (len(rows) and not np.issubdtype(rows.dtype, np.integer)):
        raise BadInput(
            f"client {client}: its rows are {rows.dtype} of shape {rows.shape}; "
            "give a list of row numbers (np.flatnonzero turns a mask into one)"
        )
    return rows.astype(np.int64)


@dataclass(frozen=True)
class FederatedData:
    """What a federation trains and tests on.

    `x`, `y` hold the training samples of all clients (memory-mapped arrays are fine) and `clients` says which rows are whose.
    With `classes` the labels are integers below it; without, `y` (n, d) are regression targets. `test_clients` groups the test
    rows by client where each client has a test set of its own. `private` data refuses objectives that need raw samples of
    other clients.
    """

    x: Array
    y: Array
    clients: Ragged
    test_x: Array
    test_y: Array
    classes: int | None = None
    transform: Transform = field(default_factory=Plain)
    test_clients: Ragged | None = None
    private: bool = False
    name: str = "arrays"

    def __post_init__(self) -> None:
        for part, x, y in (("training", self.x, self.y), ("test", self.test_x, self.test_y)):
            if len(x) != len(y):
                raise BadInput(f"{self.name}: {len(x)} {part} inputs but {len(y)} labels; give one label per input")
            self._check_values(part, x, y)
        if self.test_x.shape[1:] != self.x.shape[1:]:
            raise BadInput(
                f"{self.name}: test inputs have shape {self.test_x.shape[1:]} but training inputs {self.x.shape[1:]}; "
                "make them alike"
            )
        if not len(self.test_x):
            raise BadInput(f"{self.name}: no test samples; give at least one, for without them nothing can be evaluated")
        if len(self.clients) == 0:
            raise BadInput(f"{self.name}: no clients; give the rows of at least one")
        self._check_rows("", self.clients, len(self.x))
        empty = np.flatnonzero(self.clients.sizes == 0)
        if len(empty):
            raise BadInput(
                f"{self.name}: client {empty[0]} has no samples ({len(empty)} such); leave empty clients out or use fewer clients"
            )
        if self.test_clients is not None:
            self._check_rows("test ", self.test_clients, len(self.test_x))
            if len(self.test_clients) != len(self.clients) or not self.test_clients.sizes.all():
                raise BadInput(f"{self.name}: test_clients must give every one of the {len(self.clients)} clients a test sample")

    def _check_rows(self, part: str, clients: Ragged, rows: int) -> None:
        outside = np.flatnonzero((clients.flat < 0) | (clients.flat >= rows))
        if len(outside):
            bad = int(np.searchsorted(clients.offsets, outside[0], side="right")) - 1
            raise BadInput(f"{self.name}: client {bad} names a {part}row outside 0..{rows - 1}")

    def _check_values(self, part: str, x: Array, y: Array) -> None:
        for what, values in (("inputs", x), ("labels", y)):
            if np.issubdtype(values.dtype, np.floating) and not np.isfinite(values).all():
                row = int(np.argwhere(~np.isfinite(values))[0][0])
                where = f"row {row}{self._whose(part, row)}"
                raise BadInput(f"{self.name}: {part} {what} hold NaN or infinity at {where}; clean the data first")
        if self.classes is None:
            if y.ndim != 2:
                raise BadInput(
                    f"{self.name}: {part} targets have shape {y.shape}; regression needs (n, d), classification needs `classes`"
                )
        elif y.ndim != 1:
            raise BadInput(f"{self.name}: {part} labels have shape {y.shape}; with `classes` give one integer per sample, (n,)")
        elif not np.issubdtype(y.dtype, np.integer):
            raise BadInput(f"{self.name}: {part} labels are {y.dtype}; with `classes` they must be integers")
        elif len(y) and (int(y.min()) < 0 or int(y.max()) >= self.classes):
            row = int(np.flatnonzero((y < 0) | (y >= self.classes))[0])
            raise BadInput(
                f"{self.name}: {part} label {int(y[row])} at row {row}{self._whose(part, row)} is outside 0..{self.classes - 1}; "
                "correct it or raise `classes`"
            )

    def _whose(self, part: str, row: int) -> str:
        owners = [k for k in range(len(self.clients)) if row in self.clients[k]] if part == "training" else []
        return f" (client {owners[0]})" if owners else ""

    @property
    def outputs(self) -> int:
        """How many outputs a model for this data needs."""
        return self.classes if self.classes is not None else int(self.y.shape[1])

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one model input."""
        return tuple(self.inputs(np.asarray(self.x[:1])).shape[1:])

    def units(self, raw: Array) -> Tensor:
        """Samples in the units in which means are taken and exchanged (pixels in [0, 1], one-hot characters, or as they are)."""
        return self.transform.units(torch.from_numpy(np.ascontiguousarray(raw)))

    def inputs(self, raw: Array) -> Tensor:
        """Samples as the model sees them, without augmentation."""
        return self.transform.normalise(self.units(raw))

    def targets(self, y: Tensor) -> Tensor:
        """Labels as vectors: one-hot for classes, unchanged for regression."""
        if self.classes is None:
            return y.to(torch.float32)
        return one_hot(y, self.classes)

    def with_clients(self, changed: Mapping[int, Sequence[int] | Array]) -> "FederatedData":
        """The same arrays, with other rows for some clients: local data that changed between rounds."""
        outside = [k for k in changed if not 0 <= k < len(self.clients)]
        if outside:
            raise BadInput(f"{self.name}: there is no client {outside[0]}; clients are 0..{len(self.clients) - 1}")
        rows = Ragged.of([np.asarray(changed.get(k, self.clients[k])) for k in range(len(self.clients))])
        return replace(self, clients=rows)


def from_arrays(
    x: Array,
    y: Array,
    clients: Iterable[Sequence[int] | Array],
    test: tuple[Array, Array],
    *,
    classes: int | None = None,
    private: bool = False,
    name: str = "arrays",
) -> FederatedData:
    """Your own arrays: float inputs that the model takes as they are, and the rows of each client.

    >>> x, y = np.zeros((6, 4), np.float32), np.array([0, 1, 0, 1, 0, 1])
    >>> data = from_arrays(x, y, [[0, 1, 2], [3, 4, 5]], test=(x, y), classes=2)
    >>> len(data.clients), data.outputs, data.input_shape
    (2, 2, (4,))
    """
    x, test_x = np.asarray(x, dtype=np.float32), np.asarray(test[0], dtype=np.float32)
    y, test_y = np.asarray(y), np.asarray(test[1])
    if classes is None:
        y, test_y = y.astype(np.float32), test_y.astype(np.float32)
    return FederatedData(x, y, Ragged.of(clients), test_x, test_y, classes, private=private, name=name)
