"""Data of many clients: shared arrays, and the rows of each client."""

import hashlib
import math
import warnings
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from inspect import isclass

import numpy as np
import torch
from torch import Tensor

from fedmix.core.errors import BadInput, FedmixWarning, described
from fedmix.core.types import Array
from fedmix.core.validation import flag, instance, is_whole, shown, whole
from fedmix.data.numbers import as_array, to_tensor
from fedmix.data.ragged import Ragged, row_numbers
from fedmix.data.transforms import Images, OneHot, Plain, Transform, one_hot

LARGE = 20.0  # inputs should be about 1; larger ones lead to a warning
SAMPLED, MOST_SAMPLED = 256, 1 << 22  # rows, and numbers in them, that are looked at for that
LARGEST = float(np.finfo(np.float32).max)  # samples and targets become float32


def digest(*arrays: Array) -> bytes:
    """Hash of the arrays' types, shapes and contents."""
    hashed = hashlib.sha256()
    for array in map(np.ascontiguousarray, arrays):
        hashed.update(f"{array.dtype} {array.shape}".encode())
        hashed.update(array.data)
    return hashed.digest()


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

    def __repr__(self) -> str:
        return f"HeldOut({len(self.x)} samples{', by client' if self.clients else ''})"


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
        names: What the clients are called, in their order; None: by their numbers.

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
    names: tuple[str, ...] | None = None

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

    def __repr__(self) -> str:
        kind = f"{self.classes} classes" if self.classes else f"{self.y.shape[1]} targets"
        tests = f", {len(self.test.x)} to test on" if self.test else ""
        return (
            f"FederatedData({self.name!r}: {len(self.clients)} clients, {len(self.clients.flat)} "
            f"samples of shape {self.x.shape[1:]}, {kind}{tests})"
        )

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
        codes = [x.dtype.kind in "iu" for x in (test_x, self.x)]
        if isinstance(self.transform, Plain) and codes[0] != codes[1]:
            raise BadInput(
                f"{self.name}: test inputs are {test_x.dtype} but training inputs {self.x.dtype}; "
                "make both floats, or both integers for an nn.Embedding"
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
                f"{self.name}: `transform` is {described(self.transform)}; give a Transform of "
                "fedmix.data.transforms, such as Plain(), or transform the inputs before"
            )
        if self.test is not None:
            instance("test", self.test, HeldOut, "give HeldOut(inputs, labels), or None")
        how = "make a Ragged of each client's rows, by Ragged.of"
        instance("clients", self.clients, Ragged, how)
        if self.test is not None and self.test.clients is not None:
            instance("test.clients", self.test.clients, Ragged, how)

    def _check_clients(self) -> None:
        names = () if self.names is None else self.names
        if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
            raise BadInput(f"{self.name}: names={shown(names)} is no tuple of texts; give that")
        if self.names is not None and len(names) != len(self.clients):
            raise BadInput(
                f"{self.name}: {len(names)} names for {len(self.clients)} clients; give each "
                "one, or none"
            )
        self._check_rows("", self.clients, len(self.x))
        if len(self.clients) == 0:
            raise BadInput(f"{self.name}: no clients; give the rows of at least one")
        empty = np.flatnonzero(self.clients.sizes == 0)
        if len(empty):
            raise BadInput(
                f"{self.name}: {self._called(empty[0])} has no samples ({len(empty)} such); leave "
                "empty clients out or use fewer clients"
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
                f"{self.name}: {self._called(clients.owner[outside[0]])} names a {part}row outside "
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
        return f"row {row}" + (
            f" ({self._called(self.clients.owner[held[0]])})" if len(held) else ""
        )

    def _called(self, client: int) -> str:
        """A client in messages: its number, or its name if it has one."""
        return f"client {client if self.names is None else repr(self.names[client])}"

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
        return self.transform.units(to_tensor(raw))

    def inputs(self, raw: Array) -> Tensor:
        """Samples as the model sees them, without augmentation."""
        return self.transform.normalise(self.units(raw))

    def labels(self, raw: Array) -> Tensor:
        """Stored labels as vectors."""
        return self.targets(to_tensor(raw))

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
        rows = {int(k): row_numbers(k, rows) for k, rows in changed.items()}
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


def warn_of_size(data: FederatedData) -> None:
    """Warn about inputs that are too large to train on, such as raw measurements or bytes.

    A warning is given if a tenth of some feature's values exceed 20. Standardised data never reach
    that, however heavy their tails: at most 1 in 400 values lie 20 deviations out (Chebyshev).
    """
    few = min(SAMPLED, max(2, MOST_SAMPLED // math.prod(data.input_shape)))
    inputs = data.inputs(data.some(few))
    if not inputs.is_floating_point():  # codes
        return
    x = inputs.float().numpy()
    if np.quantile(np.abs(x), 0.9, axis=0).max() > LARGE:
        warnings.warn(
            f"{data.name}: inputs lie in [{x.min():.3g}, {x.max():.3g}], far from the size of "
            "about 1 that models and rates are made for; standardise them, (x - mean) / "
            "deviation, or make bytes Images (fedmix.data.transforms)",
            FedmixWarning,
            stacklevel=4,  # the caller of Federation
        )
