"""Data of many clients: shared arrays, and the rows of each client."""

import hashlib
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import isclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmix.core.errors import BadInput, FedmixWarning, described
from fedmix.core.types import Array
from fedmix.core.validation import flag, instance, is_whole, shown, whole
from fedmix.data.transforms import Images, OneHot, Plain, Transform, one_hot

LARGE = 20.0  # inputs should be about 1; larger ones lead to a warning
SAMPLED, MOST_SAMPLED = 256, 1 << 22  # rows, and numbers in them, that are looked at for that
LARGEST = float(np.finfo(np.float32).max)  # samples and targets become float32


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
        arrays = [_row_numbers(client, g) for client, g in enumerate(groups)]
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


def digest(*arrays: Array) -> bytes:
    """Hash of the arrays' types, shapes and contents."""
    hashed = hashlib.sha256()
    for array in map(np.ascontiguousarray, arrays):
        hashed.update(f"{array.dtype} {array.shape}".encode())
        hashed.update(array.data)
    return hashed.digest()


def _row_numbers(client: int, given: Sequence[int] | Array) -> Array:
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


@dataclass(frozen=True)
class HeldOut:
    """Samples to test on.

    Args:
        x: Inputs.
        y: Labels or targets.
        clients: Rows by client, if each client has a test set of its own.
    """

    x: Array
    y: Array
    clients: Ragged | None = None


@dataclass(frozen=True)
class FederatedData:
    """Training data by client, and test data where there are any.

    Arrays are converted to types that torch has: native byte order, and unsigned integers of more
    than one byte become signed.

    Args:
        x: Training inputs of all clients, (n, ...); may be memory-mapped.
        y: Training labels: integers below `classes`, (n,), or regression targets, (n, d).
        clients: Rows of `x` and `y` that each client holds.
        test: Samples to test on; None where nothing is tested, as at a client.
        classes: Number of classes; None for regression.
        transform: Conversion of stored samples to model inputs.
        private: Whether to refuse objectives that need raw samples of other clients.
        name: Name in messages and records.

    Raises:
        BadInput: Shapes, types or values do not fit together; the message says which and where.
    """

    x: Array
    y: Array
    clients: Ragged
    test: HeldOut | None = None
    classes: int | None = None
    transform: Transform = field(default_factory=Plain)
    private: bool = False
    name: str = "arrays"

    def __post_init__(self) -> None:
        self._check_settings()
        x, y = self._arrays("training", self.x, self.y)
        object.__setattr__(self, "x", x)
        object.__setattr__(self, "y", y)
        if self.test is not None:
            test_x, test_y = self._arrays("test", self.test.x, self.test.y)
            object.__setattr__(self, "test", replace(self.test, x=test_x, y=test_y))
            self._check_alike(test_x, test_y)
        self._check_clients()

    def _arrays(self, part: str, x: Array, y: Array) -> tuple[Array, Array]:
        """Inputs and labels as arrays that torch can hold, checked."""
        x = as_array(x, f"{self.name}: {part} inputs")
        y = as_array(y, f"{self.name}: {part} labels")
        if len(x) != len(y):
            raise BadInput(
                f"{self.name}: {len(x)} {part} inputs but {len(y)} labels; give one label per input"
            )
        self._check_values(part, x, y)
        return x, y

    def _check_alike(self, test_x: Array, test_y: Array) -> None:
        """Raise BadInput for test samples of another shape than training samples, or for none."""
        for what, tested, trained in (("inputs", test_x, self.x), ("targets", test_y, self.y)):
            if tested.shape[1:] != trained.shape[1:]:
                raise BadInput(
                    f"{self.name}: test {what} have shape {tested.shape[1:]} but training {what} "
                    f"{trained.shape[1:]}; make them alike"
                )
        if not len(test_x):
            raise BadInput(
                f"{self.name}: no test samples; give at least one, for without them nothing can be "
                "evaluated"
            )

    def _check_settings(self) -> None:
        instance("name", self.name, str, "give the data a name, such as 'mine'")
        if self.classes is not None:
            whole(f"{self.name}: classes", self.classes)
        flag(f"{self.name}: private", self.private)
        if isclass(self.transform) or not isinstance(self.transform, Transform):
            raise BadInput(
                f"{self.name}: `transform` is {described(self.transform)}; give a Transform, such "
                "as Plain()"
            )
        if self.test is not None:
            instance("test", self.test, HeldOut, "give HeldOut(inputs, labels), or None")
        how = "make a Ragged of each client's rows, by Ragged.of"
        instance("clients", self.clients, Ragged, how)
        if self.test is not None and self.test.clients is not None:
            instance("test.clients", self.test.clients, Ragged, how)

    def _check_clients(self) -> None:
        self._check_rows("", self.clients, len(self.x))
        if len(self.clients) == 0:
            raise BadInput(f"{self.name}: no clients; give the rows of at least one")
        empty = np.flatnonzero(self.clients.sizes == 0)
        if len(empty):
            raise BadInput(
                f"{self.name}: client {empty[0]} has no samples ({len(empty)} such); leave empty "
                "clients out or use fewer clients"
            )
        if self.test is not None and (rows := self.test.clients) is not None:
            self._check_rows("test ", rows, len(self.test.x))
            if len(rows) != len(self.clients) or not rows.sizes.all():
                raise BadInput(
                    f"{self.name}: test.clients must give every one of the {len(self.clients)} "
                    "clients a test sample"
                )

    def _check_rows(self, part: str, clients: Ragged, rows: int) -> None:
        flat, offsets = (np.asarray(array) for array in (clients.flat, clients.offsets))
        whole_ = flat.ndim == offsets.ndim == 1 and flat.dtype == offsets.dtype == np.int64
        if (
            not whole_
            or not len(offsets)
            or offsets[0]
            or offsets[-1] != len(flat)
            or (np.diff(offsets) < 0).any()
        ):
            raise BadInput(
                f"{self.name}: the {part}rows of clients are no int64 rows with rising offsets; "
                "make them by Ragged.of"
            )
        outside = np.flatnonzero((flat < 0) | (flat >= rows))
        if len(outside):
            raise BadInput(
                f"{self.name}: client {clients.owner[outside[0]]} names a {part}row outside "
                f"0..{rows - 1}"
            )

    def _check_values(self, part: str, x: Array, y: Array) -> None:
        for what, values in (("inputs", x), ("labels", y)):
            if len(values) and not values.size:
                raise BadInput(
                    f"{self.name}: {part} {what} have shape {values.shape}, with nothing for a "
                    "sample; give it some"
                )
            if (
                values.dtype.kind == "f"
                and (row := _outside(values, -LARGEST, LARGEST)) is not None
            ):
                finite = np.isfinite(values[row]).all()
                held, do = (
                    ("numbers beyond float32", "scale") if finite else ("NaN or infinity", "clean")
                )
                raise BadInput(
                    f"{self.name}: {part} {what} hold {held} at {self._place(part, row)}; {do} the "
                    "data first"
                )
        self._check_stored(part, x)
        if self.classes is None:
            if y.ndim != 2:
                raise BadInput(
                    f"{self.name}: {part} targets have shape {y.shape}; regression needs (n, d), "
                    "classification needs `classes`"
                )
        elif y.ndim != 1:
            raise BadInput(
                f"{self.name}: {part} labels have shape {y.shape}; with `classes` give one integer "
                "per sample, (n,)"
            )
        elif not np.issubdtype(y.dtype, np.integer):
            raise BadInput(
                f"{self.name}: {part} labels are {y.dtype}; with `classes` they must be integers"
            )
        elif (row := _outside(y, 0, self.classes - 1)) is not None:
            raise BadInput(
                f"{self.name}: {part} label {int(y[row])} at {self._place(part, row)} is outside "
                f"0..{self.classes - 1}; correct it or raise `classes`"
            )

    def _check_stored(self, part: str, x: Array) -> None:
        """Raise BadInput for inputs that the transform cannot use, such as unknown codes."""
        how = self.transform
        if how.pad and x.ndim != 4:
            raise BadInput(
                f"{self.name}: {part} inputs have shape {x.shape}; a transform's `pad` is for "
                "images, (n, ., ., .)"
            )
        if isinstance(how, OneHot):
            codes = f"OneHot({how.size}) takes codes in 0..{how.size - 1}"
            if x.dtype.kind not in "iu":
                raise BadInput(f"{self.name}: {part} inputs are {x.dtype}; {codes}, as integers")
            if (row := _outside(x, 0, how.size - 1)) is not None:
                code = next(c for c in x[row].ravel().tolist() if not 0 <= c < how.size)
                raise BadInput(
                    f"{self.name}: {part} inputs hold {code} at {self._place(part, row)}; {codes}: "
                    "correct it"
                )
        if isinstance(how, Images):
            if x.ndim < 4 or x.shape[-1] != len(how.mean):
                raise BadInput(
                    f"{self.name}: {part} inputs have shape {x.shape}; these Images are (n, "
                    f"height, width, {len(how.mean)})"
                )
            if x.dtype.kind == "f" and 0 < x.max() <= 1:
                raise BadInput(
                    f"{self.name}: {part} inputs end at {x.max():.3g}; Images takes pixels in "
                    "0..255: scale them"
                )

    def _place(self, part: str, row: int) -> str:
        """Where a row is, for messages; the client is left out where there is only one."""
        held = np.flatnonzero(
            (self.clients.flat == row) & (part == "training") & (len(self.clients) > 1)
        )
        return f"row {row}" + (f" (client {self.clients.owner[held[0]]})" if len(held) else "")

    @property
    def held_out(self) -> HeldOut:
        """The samples to test on; BadInput where there are none."""
        if self.test is None:
            raise BadInput(
                f"{self.name}: no test samples; give some, for without them nothing can be "
                "evaluated"
            )
        return self.test

    @property
    def outputs(self) -> int:
        """Number of outputs that a model for this data needs."""
        return self.classes if self.classes is not None else int(self.y.shape[1])

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one model input."""
        return tuple(self.inputs(np.asarray(self.x[:1])).shape[1:])

    def some(self, count: int) -> Array:
        """At most so many training samples, spread over all of them, in their stored form."""
        return self.x[:: -(-len(self.x) // count)]

    def class_counts(self) -> Array | None:
        """Samples of each class that each client holds, (clients, classes); None for regression."""
        if self.classes is None:
            return None
        cell = self.clients.owner * self.classes + self.y[self.clients.flat].astype(np.int64)
        return np.bincount(cell, minlength=len(self.clients) * self.classes).reshape(
            -1, self.classes
        )

    def units(self, raw: Array) -> Tensor:
        """Samples in the units in which means are taken and exchanged.

        These are pixels in [0, 1], one-hot characters, or the stored values.
        """
        return self.transform.units(torch.from_numpy(np.ascontiguousarray(raw)))

    def inputs(self, raw: Array) -> Tensor:
        """Samples as the model sees them, without augmentation."""
        return self.transform.normalise(self.units(raw))

    def labels(self, raw: Array) -> Tensor:
        """Stored labels as vectors."""
        return self.targets(torch.from_numpy(np.ascontiguousarray(raw)))

    def targets(self, y: Tensor) -> Tensor:
        """Labels as vectors: one-hot for classes, unchanged for regression."""
        if self.classes is None:
            return y.to(torch.float32)
        return one_hot(y, self.classes)

    def with_clients(self, changed: Mapping[int, Sequence[int] | Array]) -> "FederatedData":
        """Copy with other rows for some clients, for local data that changes between rounds.

        Args:
            changed: New row numbers by client.

        Raises:
            BadInput: There is no such client or row, or a client would be left without samples.
        """
        instance(
            "changes", changed, Mapping, "give the rows of those that change, such as {0: [4, 5]}"
        )
        outside = [k for k in changed if not is_whole(k, 0) or k >= len(self.clients)]
        if outside:
            raise BadInput(
                f"{self.name}: there is no client {shown(outside[0])}; clients are "
                f"0..{len(self.clients) - 1}"
            )
        rows = {int(k): _row_numbers(k, rows) for k, rows in changed.items()}
        same = copy(self)  # its arrays have been checked
        object.__setattr__(same, "clients", self.clients.with_rows(rows))
        same._check_clients()
        return same


def _outside(values: Array, low: float, high: float) -> int | None:
    """The first row that holds a number outside [low, high], or NaN; None if there is none."""
    if not values.size or (low <= values.min().item() and values.max().item() <= high):
        return None
    # float64, since float16 can hold neither bound
    inside = (values >= np.float64(low)) & (values <= np.float64(high))
    return int(np.argwhere(~inside)[0][0])


def from_arrays(
    x: Array,
    y: Array,
    clients: Iterable[Sequence[int] | Array] | Ragged,
    test: tuple[Array, Array],
    *,
    classes: int | None = None,
    private: bool = False,
    name: str = "arrays",
) -> FederatedData:
    """Make federated data from your own arrays; the model takes the inputs as they are.

    Args:
        x: Training inputs, (n, ...); converted to float32.
        y: Training labels: integers below `classes`, (n,), or regression targets, (n, d).
        clients: Row numbers of each client.
        test: Test inputs and labels.
        classes: Number of classes; None for regression.
        private: Whether to refuse objectives that need raw samples of other clients.
        name: Name in messages and records.

    Raises:
        BadInput: Arrays or rows do not fit together, as in `FederatedData`.

    >>> x, y = np.zeros((6, 4), np.float32), np.array([0, 1, 0, 1, 0, 1])
    >>> data = from_arrays(x, y, [[0, 1, 2], [3, 4, 5]], test=(x, y), classes=2)
    >>> len(data.clients), data.outputs, data.input_shape
    (2, 2, (4,))
    """
    if not isinstance(test, tuple | list) or len(test) != 2:
        raise BadInput(f"{name}: `test` is not a pair; give (inputs, labels) to test on")
    if isinstance(clients, Mapping | str) or not isinstance(clients, Iterable | Ragged):
        raise BadInput(
            f"{name}: `clients` is {described(clients)}; give a list with the row numbers of each "
            "client"
        )
    x, test_x = (
        as_array(x, f"{name}: training inputs", np.float32),
        as_array(test[0], f"{name}: test inputs", np.float32),
    )
    kind = np.float32 if classes is None else None
    y, test_y = (
        as_array(y, f"{name}: training labels", kind),
        as_array(test[1], f"{name}: test labels", kind),
    )
    rows = clients if isinstance(clients, Ragged) else Ragged.of(clients)
    held_out = HeldOut(test_x, test_y)
    return FederatedData(x, y, rows, held_out, classes, private=private, name=name)


def warn_of_size(data: FederatedData) -> None:
    """Warn about inputs that are too large to train on, such as raw measurements or bytes.

    A warning is given if a tenth of some feature's values exceed 20. Standardised data never reach
    that, however heavy their tails: at most 1 in 400 values lie 20 deviations out (Chebyshev).
    """
    few = min(SAMPLED, max(2, MOST_SAMPLED // math.prod(data.input_shape)))
    x = data.inputs(data.some(few)).float().numpy()
    if np.quantile(np.abs(x), 0.9, axis=0).max() > LARGE:
        warnings.warn(
            f"{data.name}: inputs lie in [{x.min():.3g}, {x.max():.3g}], far from the size of "
            "about 1 that models and rates are made for; standardise them, (x - mean) / "
            "deviation, or make bytes Images (fedmix.data.transforms)",
            FedmixWarning,
            stacklevel=4,  # the caller of Federation
        )


def as_array(values: Any, what: str, dtype: type | None = None) -> Array:
    """Convert an array, a tensor or a list to an array of type `dtype`.

    Without `dtype`, the array keeps its type if torch can calculate with it. Anything else raises
    BadInput: numpy would ask a Dataset for samples without end, and turn dates into numbers.
    """
    if not (hasattr(values, "__array__") or isinstance(values, list | tuple)):
        raise BadInput(
            f"{what} are {described(values)}; give an array or a tensor (of a Dataset, stack the "
            "samples)"
        )
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        reason = str(error).partition(". ")[0].rstrip(".")
        raise BadInput(f"{what} cannot be made an array of numbers ({reason})") from error
    if not array.ndim:
        raise BadInput(f"{what} are a single number; give an array with one entry for each sample")
    if np.ma.is_masked(values):
        raise BadInput(
            f"{what} are masked in places, and what is masked would be used; clean the data first"
        )
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind not in "biuf":
        held = "text" if kind in "SU" else array.dtype.name
        raise BadInput(
            f"{what} cannot be made an array of numbers (they are {held}); turn them into integers "
            "or floats first"
        )
    if kind == "u" and size > 1:  # torch does not calculate with these
        native: Any = np.int64 if not array.size or array.max() < 2**63 else np.float64
    else:
        native = array.dtype.newbyteorder("=") if size <= 8 else np.float64
    try:
        with np.errstate(over="raise"):
            return array.astype(dtype or native, copy=False)
    except FloatingPointError:
        raise BadInput(f"{what} hold numbers beyond float32; scale the data first") from None
