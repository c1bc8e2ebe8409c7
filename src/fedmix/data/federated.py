"""Data of many clients: arrays that are shared, and for each client the rows that are its own."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmix.data.transforms import Plain, Transform, one_hot
from fedmix.errors import BadInput, described
from fedmix.types import Array


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
        arrays = [_row_numbers(client, g) for client, g in enumerate(groups)]
        return Ragged.cut(np.concatenate([np.empty(0, np.int64), *arrays]), [len(a) for a in arrays])

    @staticmethod
    def cut(flat: Array, sizes: Sequence[int] | Array) -> "Ragged":
        """An array cut into parts of these sizes, one after another."""
        return Ragged(flat, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))

    @staticmethod
    def by_owner(owner: Array, count: int) -> "Ragged":
        """Group the positions of `owner`, an array of integers in [0, count), by its value, in order."""
        return Ragged.cut(np.argsort(owner, kind="stable"), np.bincount(owner, minlength=count))

    @cached_property
    def sizes(self) -> Array:
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int) -> Array:
        if not 0 <= client < len(self):
            raise IndexError(f"client {client} of {len(self)}")
        return self.flat[self.offsets[client] : self.offsets[client + 1]]

    @property
    def owner(self) -> Array:
        """Whose row the flat array holds at each position."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def with_rows(self, changed: Mapping[int, Array]) -> "Ragged":
        """The same, with other rows for some clients."""
        sizes, pieces, end = self.sizes.copy(), [], 0
        for client in sorted(changed):
            pieces += [self.flat[end : self.offsets[client]], changed[client]]
            sizes[client], end = len(changed[client]), self.offsets[client + 1]
        return Ragged.cut(np.concatenate([*pieces, self.flat[end:]]), sizes)

    def take(self, clients: Array) -> "Ragged":
        """The rows of these clients, in their order."""
        sizes = self.sizes[clients]
        chosen = Ragged.cut(np.empty(0, np.int64), sizes)
        shift = self.offsets[clients] - chosen.offsets[:-1]
        return replace(chosen, flat=self.flat[np.arange(chosen.offsets[-1]) + np.repeat(shift, sizes)])


def digest(*arrays: Array) -> bytes:
    """A hash that changes when the arrays do."""
    hashed = hashlib.sha256()
    for array in map(np.ascontiguousarray, arrays):
        hashed.update(f"{array.dtype} {array.shape}".encode())
        hashed.update(array.data)
    return hashed.digest()


def _row_numbers(client: int, given: Sequence[int] | Array) -> Array:
    """Masks and fractions would turn into other rows without a word."""
    try:
        rows = np.asarray(given)
    except ValueError as error:
        raise BadInput(f"client {client}: its rows are lists of different lengths; give one list of row numbers") from error
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
        if self.classes is not None and (not isinstance(self.classes, int | np.integer) or self.classes < 1):
            raise BadInput(f"{self.name}: classes={self.classes!r} must be at least 1, and a whole number")
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
        self._check_clients()

    def _check_clients(self) -> None:
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
            raise BadInput(f"{self.name}: client {clients.owner[outside[0]]} names a {part}row outside 0..{rows - 1}")

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
        held = np.flatnonzero((self.clients.flat == row) & (part == "training"))
        return f" (client {self.clients.owner[held[0]]})" if len(held) else ""

    @property
    def outputs(self) -> int:
        """How many outputs a model for this data needs."""
        return self.classes if self.classes is not None else int(self.y.shape[1])

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one model input."""
        return tuple(self.inputs(np.asarray(self.x[:1])).shape[1:])

    def class_counts(self) -> Array | None:
        """How many samples of each class every client holds (clients, classes); None where there are no classes."""
        if self.classes is None:
            return None
        cell = self.clients.owner * self.classes + self.y[self.clients.flat].astype(np.int64)
        return np.bincount(cell, minlength=len(self.clients) * self.classes).reshape(-1, self.classes)

    def units(self, raw: Array) -> Tensor:
        """Samples in the units in which means are taken and exchanged (pixels in [0, 1], one-hot characters, or as they are)."""
        return self.transform.units(torch.from_numpy(np.ascontiguousarray(raw)))

    def inputs(self, raw: Array) -> Tensor:
        """Samples as the model sees them, without augmentation."""
        return self.transform.normalise(self.units(raw))

    def labels(self, raw: Array) -> Tensor:
        """Labels in their stored form as vectors."""
        return self.targets(torch.from_numpy(np.ascontiguousarray(raw)))

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
        rows = {int(k): _row_numbers(k, rows) for k, rows in changed.items()}
        same = copy(self)  # whose arrays have been checked
        object.__setattr__(same, "clients", self.clients.with_rows(rows))
        same._check_clients()
        return same


_UNSIGNED = (np.uint16, np.uint32, np.uint64)  # with which torch does not calculate


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
    if not isinstance(test, tuple | list) or len(test) != 2:
        raise BadInput(f"{name}: `test` is not a pair; give (inputs, labels) to test on")
    if not isinstance(clients, Iterable):
        raise BadInput(f"{name}: `clients` is {described(clients)}; give a list with the row numbers of each client")
    x, test_x = _array(x, f"{name}: training inputs", np.float32), _array(test[0], f"{name}: test inputs", np.float32)
    kind = np.float32 if classes is None else None
    y, test_y = _array(y, f"{name}: training labels", kind), _array(test[1], f"{name}: test labels", kind)
    y, test_y = (a.astype(np.int64) if a.dtype in _UNSIGNED else a for a in (y, test_y))
    return FederatedData(x, y, Ragged.of(clients), test_x, test_y, classes, private=private, name=name)


def _array(values: Any, what: str, dtype: type | None = None) -> Array:
    """Arrays, tensors and lists as an array; nothing else, since numpy would ask a Dataset for samples without end."""
    if not (hasattr(values, "__array__") or isinstance(values, list | tuple)):
        raise BadInput(f"{what} are {described(values)}; give an array or a tensor (of a Dataset, stack the samples)")
    try:
        array = np.asarray(values, dtype)
    except (ValueError, TypeError, RuntimeError) as error:
        reason = str(error).partition(". ")[0].rstrip(".")
        raise BadInput(f"{what} cannot be made an array of numbers ({reason})") from error
    if not array.ndim:
        raise BadInput(f"{what} are a single number; give an array with one entry for each sample")
    if np.ma.is_masked(values):
        raise BadInput(f"{what} are masked in places, and what is masked would be used; clean the data first")
    return array
