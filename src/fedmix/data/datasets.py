"""Federated data from data sets that other libraries made: PyTorch's and Hugging Face's."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset

from fedmix.core.errors import BadInput, described, first_line
from fedmix.core.reprs import counted
from fedmix.core.types import Array
from fedmix.data.arrays import Id, from_arrays
from fedmix.data.federated import FederatedData
from fedmix.data.numbers import to_numpy
from fedmix.data.transforms import Transform

SPLITS = {"train", "test", "validation"}


def from_datasets(
    datasets: Sequence[Any] | Mapping[Id, Any],
    test: Any = None,
    *,
    columns: tuple[str, str] | None = None,
    test_clients: Sequence[Id] | None = None,
    transform: Transform | None = None,
    classes: int | None = None,
    private: bool = False,
    name: str = "datasets",
) -> FederatedData:
    """Make federated data from the data set of each client, of PyTorch or of Hugging Face.

    A data set has a length, and its i-th sample is a pair (x, y), or a dict of columns. Samples are
    read once, into memory.

    Args:
        datasets: One for each client: a list, or a dict by the clients' names.
        test: A data set to test on.
        columns: Which columns are inputs and labels, such as ("image", "label"), if samples are
            dicts.
        test_clients: Clients whose samples are the test set instead.
        transform: Conversion of stored samples to model inputs; None: they are used as they are.
        classes: Number of classes; None for regression.
        private: Whether to refuse objectives that need raw samples of other clients.
        name: Name in messages and records.

    Raises:
        BadInput: A data set cannot be read so, or samples do not fit together.

    >>> import torch
    >>> from torch.utils.data import TensorDataset
    >>> hospitals = [TensorDataset(torch.randn(n, 4), torch.arange(n) % 2) for n in (3, 5, 4)]
    >>> data = from_datasets(hospitals, test_clients=[2], classes=2)
    >>> data.clients.sizes.tolist(), len(data.test.x)
    ([3, 5], 4)
    """
    if not isinstance(datasets, list | tuple | Mapping):
        raise BadInput(
            f"{name}: `datasets` is {described(datasets)}; give a list with the data set of each "
            "client, or a dict of them by name"
        )
    if isinstance(datasets, Mapping) and SPLITS & datasets.keys():
        raise BadInput(
            f"{name}: {', '.join(map(repr, datasets))} are splits of one data set and no clients; "
            "give the data set of each client, and `test` beside them"
        )
    if columns is not None and (
        not isinstance(columns, tuple | list)
        or len(columns) != 2
        or not all(isinstance(c, str) for c in columns)
    ):
        raise BadInput(f"{name}: columns={columns!r}; give two, such as ('image', 'label')")
    parts = datasets if isinstance(datasets, Mapping) else dict(enumerate(datasets))
    return from_arrays(
        {own: _read(f"{name}: client {own!r}", part, columns) for own, part in parts.items()},
        test=None if test is None else _read(f"{name}: test", test, columns),
        test_clients=test_clients,
        transform=transform,
        classes=classes,
        private=private,
        name=name,
    )


def _read(where: str, dataset: Any, columns: tuple[str, str] | None) -> tuple[Array, Array]:
    """All inputs and all labels of a data set."""
    if isinstance(dataset, Mapping):
        raise BadInput(
            f"{where} is a dict ({', '.join(map(str, dataset))}); give one of its splits"
        )
    sized = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if not sized or isinstance(dataset, IterableDataset | str):
        raise BadInput(
            f"{where} is {described(dataset)}, which has no i-th sample; give a data set with a "
            "length, such as a list of pairs (x, y)"
        )
    if not len(dataset):
        raise BadInput(f"{where} has no samples; leave it out")
    once, again = (_pair(where, dataset, 0, columns) for _ in range(2))
    if not all(
        np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        for a, b in zip(once, again, strict=True)
    ):
        raise BadInput(
            f"{where} gives two results for its first sample, as random crops do, and samples are "
            "read once; leave random changes out"
        )
    if columns is not None and hasattr(dataset, "column_names"):  # many times as fast as by sample
        read = [[_numbers(where, v) for v in dataset[column]] for column in columns]
        pairs = list(zip(*read, strict=True))
    else:
        pairs = [_pair(where, dataset, i, columns) for i in range(len(dataset))]
    for i, pair in enumerate(pairs):
        for value, first in zip(pair, pairs[0], strict=True):
            if value.shape != first.shape:
                raise BadInput(
                    f"{where}: sample {i} has shape {value.shape}, and the first {first.shape}; "
                    "make them alike, as by padding"
                )
    xs, ys = zip(*pairs, strict=True)
    return np.stack(xs), np.stack(ys)


def _pair(
    where: str, dataset: Any, number: int, columns: tuple[str, str] | None
) -> tuple[Array, Array]:
    try:
        sample = dataset[number]
    except Exception as error:  # of any kind, such as a file that is no image
        raise BadInput(
            f"{where}: its sample {number} cannot be read: {type(error).__name__}: "
            f"{first_line(error)}"
        ) from error
    if isinstance(sample, Mapping):
        if columns is None or not set(columns) <= sample.keys():
            raise BadInput(
                f"{where} has columns {', '.join(map(str, sample))}; name those of inputs and "
                "labels, such as columns=('image', 'label')"
            )
        return _numbers(where, sample[columns[0]]), _numbers(where, sample[columns[1]])
    if columns is not None:
        raise BadInput(f"{where} has no columns, but pairs; leave `columns` out")
    if not isinstance(sample, tuple | list) or len(sample) != 2:
        parts = isinstance(sample, tuple | list)
        held = f"of {counted(len(sample), 'part')}" if parts else described(sample)
        raise BadInput(
            f"{where}: its samples are {held}; give pairs (x, y), or dicts and `columns`"
        )
    return _numbers(where, sample[0]), _numbers(where, sample[1])


def _numbers(where: str, value: Any) -> Array:
    try:
        return to_numpy(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise BadInput(f"{where} holds what is no array ({first_line(error)})") from error
