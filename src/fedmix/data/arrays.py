"""Federated data from arrays of your own, in the forms in which people have samples by client."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from fedmix.core.errors import BadInput, described
from fedmix.core.types import Array
from fedmix.core.validation import shown
from fedmix.data.federated import FederatedData, HeldOut
from fedmix.data.numbers import as_array
from fedmix.data.ragged import Ragged
from fedmix.data.transforms import Plain, Transform

Id: TypeAlias = Any
"""What a client is called: an integer or text, or any key of a dict."""


def from_arrays(
    x: Any,
    y: Any = None,
    clients: Any = None,
    test: tuple[Any, Any] | None = None,
    *,
    test_clients: Iterable[Id] | None = None,
    transform: Transform | None = None,
    classes: int | None = None,
    private: bool = False,
    name: str = "arrays",
) -> FederatedData:
    """Make federated data from your own arrays, tensors or lists of numbers.

    There are two ways to say whose a sample is. Give all samples as `x` and `y`, and `clients` as
    one of

    - the owner of each row, an integer or text: [0, 0, 1] or ["a", "a", "b"];
    - a list with the row numbers of each client: [[0, 1], [2]];
    - a dict of those by the client's name: {"a": [0, 1], "b": [2]};
    - what a function of `fedmix.data.partition` returns.

    Or leave `clients` out and give the samples of each client: a dict {"a": (x, y), ...}, a list
    [(x, y), ...], or two lists or dicts, of inputs and of labels.

    Owners are sorted, and dicts and lists keep their order. Integer inputs stay integers, as codes
    that a model looks up; other numbers become float32.

    Args:
        x: Training inputs, (n, ...), or those of each client.
        y: Training labels: integers below `classes`, (n,), or regression targets, (n, d).
        clients: Whose each sample is; None: `x` and `y` say it.
        test: Test inputs and labels.
        test_clients: Clients whose samples are the test set instead; they do not train. Name them
            as above: by owner, by key, or by number in a list.
        transform: Conversion of stored samples to model inputs (`fedmix.data.transforms`), such as
            `OneHot`; None: they are used as they are.
        classes: Number of classes; None for regression.
        private: Whether to refuse objectives that need raw samples of other clients.
        name: Name in messages and records.

    Raises:
        BadInput: The arguments do not fit together or could mean two things; the message says what
            to give.

    >>> x, y = np.zeros((6, 4)), np.array([0, 1, 0, 1, 0, 1])
    >>> data = from_arrays(x, y, ["a", "a", "b", "b", "c", "c"], test_clients=["c"], classes=2)
    >>> data.names, data.clients[1].tolist(), len(data.test.x)
    (('a', 'b'), [2, 3], 2)
    """
    if (test is None) == (test_clients is None):
        raise BadInput(
            f"{name}: give either `test`, (inputs, labels), or `test_clients`, those that only test"
        )
    if test is not None and (not isinstance(test, tuple | list) or len(test) != 2):
        raise BadInput(f"{name}: `test` is not a pair; give (inputs, labels) to test on")
    if clients is None:
        x, y, rows, ids = _joined(name, x, y, classes)
    elif y is None:
        raise BadInput(
            f"{name}: there are no training labels; give `y` beside `clients`, with as many rows"
        )
    else:
        x, y = _samples(f"{name}: training", x, y, classes)
        rows, ids = _rows_by_client(name, clients, len(x))
    if test is None:
        rows, held, ids = _without(name, rows, ids, test_clients)
        held_out = HeldOut(x[held], y[held])
    else:
        test_x, test_y = _samples(f"{name}: test", *test, classes)
        held_out = HeldOut(test_x if x.dtype.kind in "iu" else test_x.astype(x.dtype), test_y)
    numbered = all(isinstance(own, int) and own == k for k, own in enumerate(ids))
    return FederatedData(
        x,
        y,
        rows,
        held_out,
        classes,
        Plain() if transform is None else transform,
        private=private,
        name=name,
        names=None if numbered else tuple(map(str, ids)),
    )


def _samples(what: str, x: Any, y: Any, classes: int | None) -> tuple[Array, Array]:
    """Inputs and labels as arrays; numbers are float32, but for codes and labels."""
    inputs = as_array(x, f"{what} inputs")
    if inputs.dtype.kind not in "iu":
        inputs = as_array(inputs, f"{what} inputs", np.float32)
    return inputs, as_array(y, f"{what} labels", np.float32 if classes is None else None)


# The samples of each client


def _joined(
    name: str, x: Any, y: Any, classes: int | None
) -> tuple[Array, Array, Ragged, list[Id]]:
    """All samples as two arrays, the rows of each client, and what clients are called."""
    parts = {
        own: _samples(f"{name}: client {own!r}:", *pair, classes)
        for own, pair in _pairs(name, x, y).items()
    }
    if not parts:
        raise BadInput(f"{name}: no clients; give the samples of at least one")
    first = next(iter(parts))
    for own, (inputs, labels) in parts.items():
        for what, mine, theirs in zip(
            ("inputs", "labels"), (inputs, labels), parts[first], strict=True
        ):
            if mine.shape[1:] != theirs.shape[1:]:
                raise BadInput(
                    f"{name}: the {what} of client {own!r} have shape {mine.shape[1:]} a sample, "
                    f"and those of client {first!r} {theirs.shape[1:]}; make them alike"
                )
        if len(inputs) != len(labels):
            raise BadInput(
                f"{name}: client {own!r} has {len(inputs)} inputs and {len(labels)} labels; give "
                "one label per input"
            )
    xs, ys = zip(*parts.values(), strict=True)
    sizes = [len(inputs) for inputs in xs]
    joined = np.concatenate(xs), np.concatenate(ys)
    return *joined, Ragged.cut(np.arange(sum(sizes)), sizes), list(parts)


def _pairs(name: str, x: Any, y: Any) -> dict[Id, tuple[Any, Any]]:
    """Inputs and labels by client, from a dict or list of pairs, or two dicts or lists."""
    how = f"{name}: without `clients`, give {{client: (x, y)}}, [(x, y)] or two lists of arrays"
    if y is None:
        if not isinstance(x, Mapping | list | tuple):
            raise BadInput(f"{how}; `x` is {described(x)}")
        pairs = dict(x) if isinstance(x, Mapping) else dict(enumerate(x))
        for own, pair in pairs.items():
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise BadInput(f"{how}; client {own!r} is no pair of inputs and labels")
        return pairs
    both = isinstance(x, Mapping) and isinstance(y, Mapping)
    if not both and not (isinstance(x, list | tuple) and isinstance(y, list | tuple)):
        raise BadInput(f"{how}; `x` is {described(x)} and `y` {described(y)}")
    xs, ys = (dict(v) if isinstance(v, Mapping) else dict(enumerate(v)) for v in (x, y))
    if xs.keys() != ys.keys():
        raise BadInput(f"{how}; `x` and `y` are not of the same clients")
    return {own: (xs[own], ys[own]) for own in xs}


# Whose each row is


def _rows_by_client(name: str, clients: Any, count: int) -> tuple[Ragged, list[Id]]:
    """The rows of each client, and what clients are called."""
    if isinstance(clients, tuple) and len(clients) == 2 and isinstance(clients[0], Ragged):
        return clients[0], list(clients[1])  # of partition.natural
    if isinstance(clients, Ragged):
        return clients, list(range(len(clients)))
    if isinstance(clients, Mapping):
        return Ragged.of(clients.values()), list(clients)
    several = np.ndim(clients) if hasattr(clients, "__array__") else isinstance(clients, Iterable)
    if isinstance(clients, str) or not several:
        raise BadInput(
            f"{name}: `clients` is {described(clients)}; give the owner of each row, or the row "
            "numbers of each client"
        )
    given = clients if hasattr(clients, "__array__") else list(clients)
    flat = [isinstance(own, str | bytes) or not _is_several(own) for own in given]
    if all(flat) and flat:
        owners = [own.item() if hasattr(own, "item") else own for own in given]
        return _by_owner(name, owners, count)
    if any(flat):
        raise BadInput(
            f"{name}: `clients` holds both single values and lists; give the owner of each row, or "
            "the row numbers of each client"
        )
    if hasattr(given, "__array__") and np.shape(given)[:1] == (count,):
        raise BadInput(
            f"{name}: `clients` of shape {np.shape(given)} could be the owner of each row, or the "
            "rows of each client; give owners as a flat array, or rows as lists"
        )
    return Ragged.of(given), list(range(len(given)))


def _is_several(own: Any) -> bool:
    return hasattr(own, "__len__") and getattr(own, "ndim", 1) > 0


def _by_owner(name: str, owners: Sequence[Any], count: int) -> tuple[Ragged, list[Id]]:
    kinds = {type(own) for own in owners}
    if kinds not in ({int}, {str}):
        held = " and ".join(sorted(kind.__name__ for kind in kinds))
        raise BadInput(
            f"{name}: `clients` holds {held}; give the owner of each row, an integer or a text "
            "(np.flatnonzero turns a mask into rows)"
        )
    if len(owners) != count:
        raise BadInput(
            f"{name}: `clients` names {len(owners)} owners for {count} rows; give one for each, or "
            "a list with the row numbers of each client"
        )
    ids, position = np.unique(np.asarray(owners), return_inverse=True)
    if kinds == {int} and len(ids) == count > 1:
        raise BadInput(
            f"{name}: `clients` holds {count} different integers, which could be an owner for each "
            "row or the rows of a single client; give [rows] for one client, or a list of lists"
        )
    return Ragged.by_owner(position, len(ids)), ids.tolist()


def _without(
    name: str, rows: Ragged, ids: Sequence[Id], test_clients: Any
) -> tuple[Ragged, Array, list[Id]]:
    """The rows of those that train, the rows to test on, and what those that train are called."""
    if isinstance(test_clients, str) or not isinstance(test_clients, Iterable):
        raise BadInput(
            f"{name}: test_clients={shown(test_clients)} could be a client or how many; give a "
            "list of clients, such as "
            f"{list(ids[-1:])}"
        )
    wanted, places = list(test_clients), {own: k for k, own in enumerate(ids)}
    if unknown := [own for own in wanted if not isinstance(own, Hashable) or own not in places]:
        raise BadInput(
            f"{name}: there is no client {unknown[0]!r} to test on; clients are {shown(list(ids))}"
        )
    testing = {places[own] for own in wanted}
    others = [k for k in range(len(ids)) if k not in testing]
    if not testing or not others:
        raise BadInput(f"{name}: some clients must test and some must train; change `test_clients`")
    train, held = rows.take(np.array(others)), rows.take(np.array(sorted(testing)))
    shared = np.intersect1d(train.flat, held.flat)
    if len(shared):
        raise BadInput(
            f"{name}: row {shared[0]} belongs to a client that tests and to one that trains; give "
            "it to one of them"
        )
    return train, np.unique(held.flat), [ids[k] for k in others]
