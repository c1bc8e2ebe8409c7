"""Samples by client in every form that people have, held against the same clients by hand."""

from collections.abc import Callable, Iterator
from datetime import date
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset

from fedmix import BadInput
from fedmix.data import FederatedData, from_arrays, from_datasets, partition
from fedmix.data.transforms import OneHot

X = np.arange(24, dtype=np.float32).reshape(6, 4) / 24
Y = np.array([0, 1, 2, 0, 1, 2])
TEST = (X[:2], Y[:2])
ROWS = [[0, 1, 5], [2, 3, 4]]  # of clients a and b
OWNER = np.array([7, 7, 9, 9, 9, 7])


class Column:
    """A column of a table, as pandas shows it: objects, and an index that starts anywhere."""

    def __init__(self, values: list[Any]) -> None:
        self.values = np.array(values, object)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array(self.values, dtype)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)


def held(made: FederatedData) -> list[tuple[list[Any], list[int]]]:
    """The samples of each client."""
    rows = [made.clients[k] for k in range(len(made.clients))]
    return [(made.x[r].tolist(), made.y[r].tolist()) for r in rows]


EXPECTED = [(X[r].tolist(), Y[r].tolist()) for r in ROWS]
PARTS = [(X[r], Y[r]) for r in ROWS]
FORMS: dict[str, tuple[tuple[Any, ...], tuple[str, ...] | None]] = {
    "lists of rows": ((X, Y, ROWS), None),
    "array of rows": ((X, Y, np.array(ROWS)), None),
    "generator of rows": ((X, Y, (np.array(r) for r in ROWS)), None),
    "tensors of rows": ((X, Y, [torch.tensor(r) for r in ROWS]), None),
    "rows by name": ((X, Y, dict(zip("ba", ROWS, strict=True))), ("b", "a")),
    "owners as integers": ((X, Y, OWNER), ("7", "9")),
    "owners from 0": ((X, Y, OWNER // 9), None),
    "owners as a list": ((X, Y, OWNER.tolist()), ("7", "9")),
    "owners as a tensor": ((X, Y, torch.tensor(OWNER)), ("7", "9")),
    "owners as text": ((X, Y, np.array(list("aabbba"))), ("a", "b")),
    "owners as a column": ((X, Y, Column(list("aabbba"))), ("a", "b")),
    "owners as a column of integers": ((X, Y, Column(OWNER.tolist())), ("7", "9")),
    "a natural partition": ((X, Y, partition.natural(list("aabbba"))), ("a", "b")),
    "pairs by name": (({"b": PARTS[0], "a": PARTS[1]},), ("b", "a")),
    "list of pairs": ((PARTS,), None),
    "two lists": (([x for x, _ in PARTS], [y for _, y in PARTS]), None),
    "two dicts": (({"a": PARTS[0][0], "b": PARTS[1][0]}, {"b": PARTS[1][1], "a": PARTS[0][1]}),
        ("a", "b")),
    "lists of tensors": (([torch.tensor(x) for x, _ in PARTS], [y.tolist() for _, y in PARTS]),
        None),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_clients(form: str) -> None:
    given, names = FORMS[form]
    made = from_arrays(*given, test=TEST, classes=3)  # type: ignore[misc]  # a form gives 2 or 3
    assert held(made) == EXPECTED
    assert made.names == names


@pytest.mark.parametrize("how", ["by_classes", "shards", "dirichlet", "iid"])
def test_what_partitions_return_is_taken(how: str) -> None:
    rng = np.random.default_rng(0)
    rows = {
        "by_classes": lambda: partition.by_classes(Y, 3, 2, rng),
        "shards": lambda: partition.shards(Y, 3, 1, rng),
        "dirichlet": lambda: partition.dirichlet(Y, 2, 1.0, rng),
        "iid": lambda: partition.iid(6, 2, rng),
    }[how]()
    made = from_arrays(X, Y, rows, TEST, classes=3)
    assert [made.clients[k].tolist() for k in range(len(rows))] == [
        rows[k].tolist() for k in range(len(rows))
    ]


TESTERS: dict[str, tuple[tuple[Any, ...], Any]] = {
    "owners as integers": ((X, Y, OWNER), [9]),
    "owners as text": ((X, Y, list("aabbba")), ["b"]),
    "rows by name": ((X, Y, {"a": ROWS[0], "b": ROWS[1]}), ["b"]),
    "lists of rows": ((X, Y, ROWS), [1]),
    "pairs by name": (({"a": PARTS[0], "b": PARTS[1]},), ["b"]),
    "two lists": (([x for x, _ in PARTS], [y for _, y in PARTS]), [1]),
    "numbers of numpy": ((X, Y, ROWS), np.array([1])),
    "numbers of torch": ((X, Y, ROWS), torch.tensor([1])),
}


@pytest.mark.parametrize("form", TESTERS)
def test_clients_that_only_test(form: str) -> None:
    given, testers = TESTERS[form]
    made = from_arrays(*given, test_clients=testers, classes=3)
    assert held(made) == EXPECTED[:1]
    assert (made.held_out.x.tolist(), made.held_out.y.tolist()) == EXPECTED[1]


def test_clients_that_are_left_keep_their_names_and_rows_their_numbers() -> None:
    made = from_arrays(X, Y, [[0], [1, 2], [3], [4, 5]], test_clients=[0, 2], classes=3)
    assert made.names == ("1", "3")
    assert [made.clients[k].tolist() for k in range(2)] == [[1, 2], [4, 5]]
    assert made.held_out.x.tolist() == X[[0, 3]].tolist()
    assert made.with_clients({1: [5]}).clients[1].tolist() == [5]


def test_a_transform_is_used() -> None:
    codes = np.arange(12).reshape(6, 2) % 4
    made = from_arrays(codes, Y, ROWS, (codes, Y), transform=OneHot(4), classes=3)
    assert made.input_shape == (2, 4)
    assert made.inputs(made.x[1:2]).argmax(-1).tolist() == [[2, 3]]


def test_integers_stay_integers_and_other_numbers_are_float32() -> None:
    for kind in (np.uint8, np.int16, np.int64, ">i4"):
        codes = (np.arange(12).reshape(6, 2) % 4).astype(kind)
        made = from_arrays(codes, Y, ROWS, (codes, Y), classes=3)
        assert made.inputs(made.x).dtype == torch.int64
        assert made.inputs(made.x).tolist() == codes.tolist()
    for numbers in (X, X.astype(np.float64), X.astype(np.float16), X > 0.5):
        made = from_arrays(numbers, Y, ROWS, (numbers, Y), classes=3)
        assert made.x.dtype == np.float32
        assert made.inputs(made.x).dtype == torch.float32
    whole = from_arrays(
        X, Y, ROWS, ([[0, 1, 0, 1]], [1]), classes=3
    )  # numbers, as those that train
    assert whole.inputs(whole.held_out.x).tolist() == [[0.0, 1.0, 0.0, 1.0]]
    assert whole.held_out.x.dtype == np.float32
    with pytest.raises(BadInput, match="test inputs are float32 but training inputs int64; make"):
        from_arrays(np.ones((6, 4), int), Y, ROWS, TEST, classes=3)
    targets = from_arrays(X, Y[:, None], ROWS, (X, Y[:, None]))  # of a regression
    assert targets.y.dtype == np.float32


REFUSED: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "neither test": ((X, Y, ROWS), {}, "give either `test`, .*, or `test_clients`"),
    "both tests": ((X, Y, ROWS), {"test": TEST, "test_clients": [1]}, "give either `test`"),
    "a number to test": ((X, Y, OWNER), {"test_clients": 7},
        r"test_clients=7 could be a client or how many; give a list of clients, such as \[9\]"),
    "a share to test": ((X, Y, ROWS), {"test_clients": 0.5}, "0.5 could be a client or how many"),
    "a word to test": ((X, Y, list("aabbba")), {"test_clients": "a"},
        r"test_clients='a' could be .* such as \['b'\]"),
    "nobody of that name": ((X, Y, OWNER), {"test_clients": [0]},
        r"there is no client 0 to test on; clients are \[7, 9\]"),
    "a number for a name": ((X, Y, {"a": ROWS[0], "b": ROWS[1]}), {"test_clients": [1]},
        r"there is no client 1 to test on; clients are \['a', 'b'\]"),
    "a mask to test": ((X, Y, ROWS), {"test_clients": np.array([False, True])},
        r"there is no client False to test on; clients are \[0, 1\]"),
    "rows to test": ((X, Y, ROWS), {"test_clients": [[1]]}, r"there is no client \[1\] to test on"),
    "a flat number to test": ((X, Y, ROWS), {"test_clients": np.array(1)}, "could be a client or"),
    "a flat number": ((X, Y, np.array(1)), {"test": TEST},
        "`clients` is of type ndarray; give the owner of each row"),
    "all test": ((X, Y, ROWS), {"test_clients": [0, 1]}, "some clients must test and some must"),
    "none test": ((X, Y, ROWS), {"test_clients": []}, "some clients must test and some"),
    "shared rows": ((X, Y, [[0, 1, 2], [2, 3]]), {"test_clients": [1]},
        "row 2 belongs to a client that tests and to one that trains; give it to one"),
    "too few owners": ((X, Y, OWNER[:5]), {"test": TEST},
        "`clients` names 5 owners for 6 rows; give one for each, or a list with the row numbers"),
    "a mask": ((X, Y, OWNER == 7), {"test": TEST},
        "`clients` holds bool; give the owner of each row, .*np.flatnonzero turns a mask into"),
    "fractions": ((X, Y, OWNER / 2), {"test": TEST}, "`clients` holds float; give the owner"),
    "a missing owner": ((X, Y, Column([*"aabbb", None])), {"test": TEST},
        "`clients` holds NoneType and str; give the owner"),
    "bytes": ((X, Y, [b"a", b"b"] * 3), {"test": TEST}, "`clients` holds bytes; give the owner"),
    "dates": ((X, Y, [date(2020, 1, 1)] * 6), {"test": TEST}, "`clients` holds date; give the own"),
    "several kinds": ((X, Y, [0, "a", 0, "a", 0, 0]), {"test": TEST}, "holds int and str; give"),
    "all different": ((X, Y, np.arange(6)), {"test": TEST},
        r"holds 6 different integers, which could be an owner for each row or the rows of a single "
        r"client; give \[rows\] for one client"),
    "a column": ((X, Y, OWNER[:, None]), {"test": TEST},
        r"of shape \(6, 1\) could be the owner of each row, or the rows of each client"),
    "two columns": ((X, Y, np.stack([OWNER, OWNER], 1)), {"test": TEST},
        r"of shape \(6, 2\) could be the owner of each row, or the rows of each client"),
    "owners and rows": ((X, Y, [0, [1, 2]]), {"test": TEST}, "both single values and lists"),
    "no labels": ((X, None, ROWS), {"test": TEST}, "no training labels; give `y`"),
    "arrays alone": ((X, Y), {"test": TEST}, r"without `clients`, give \{client: \(x, y\)\}"),
    "no pair": (({"a": X},), {"test": TEST}, "client 'a' is no pair of inputs and labels"),
    "other clients": (({"a": X}, {"b": Y}), {"test": TEST}, "are not of the same clients"),
    "one list shorter": (([X], [Y, Y]), {"test": TEST}, "are not of the same clients"),
    "other shapes": (([X, X[:, :2]], [Y, Y]), {"test": TEST},
        r"inputs of client 1 have shape \(2,\) a sample, and those of client 0 \(4,\)"),
    "too few labels": (([X, X], [Y, Y[:5]]), {"test": TEST}, "client 1 has 6 inputs and 5 labels"),
    "nobody": (([], []), {"test": TEST}, "no clients; give the samples of at least one"),
    "no rows": ((X, Y, []), {"test": TEST}, "no clients; give the rows of at least one"),
    "an empty client": ((X, Y, {"a": ROWS[0], "b": []}), {"test": TEST},
        "mine: client 'b' has no samples"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_could_mean_two_things_is_refused(case: str) -> None:
    given, more, said = REFUSED[case]
    with pytest.raises(BadInput, match=said) as caught:
        from_arrays(*given, **more, classes=3, name="mine")
    assert str(caught.value).startswith("mine: ")


def test_a_client_is_called_by_its_name() -> None:
    wrong = X.copy()
    wrong[3, 0] = np.nan
    with pytest.raises(BadInput, match=r"NaN or infinity at row 3 \(client '9'\)"):
        from_arrays(wrong, Y, OWNER, TEST, classes=3)


# Data sets


class Table:
    """As Hugging Face's `Dataset` shows itself: rows are dicts, columns go by their names."""

    def __init__(self, rows: list[int], **more: list[Any]) -> None:
        self.held = {"pixels": [X[r].tolist() for r in rows], "label": Y[rows].tolist(), **more}
        self.asked = list[object]()

    @property
    def column_names(self) -> list[str]:
        return list(self.held)

    def __len__(self) -> int:
        return len(self.held["label"])

    def __getitem__(self, key: int | str) -> Any:
        self.asked.append(key)
        if isinstance(key, str):
            return self.held[key]
        return {name: column[key] for name, column in self.held.items()}


class Pairs(Dataset[tuple[Any, int]]):
    """As people write them for PyTorch; `change` is made of each input."""

    def __init__(self, rows: list[int], change: Callable[[Any], Any] = torch.tensor) -> None:
        self.rows, self.change = rows, change

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        return self.change(X[self.rows[i]]), int(Y[self.rows[i]])


ALL = TensorDataset(torch.tensor(X), torch.tensor(Y))
SETS: dict[str, list[Any]] = {
    "tensors": [TensorDataset(torch.tensor(X[r]), torch.tensor(Y[r])) for r in ROWS],
    "own": [Pairs(r) for r in ROWS],
    "parts of one": [Subset(ALL, r) for r in ROWS],
    "several": [ConcatDataset([Subset(ALL, r[:1]), Subset(ALL, r[1:])]) for r in ROWS],
    "lists of pairs": [[(X[i], Y[i]) for i in r] for r in ROWS],
}


@pytest.mark.parametrize("kind", SETS)
def test_pytorchs_data_sets_are_read(kind: str) -> None:
    made = from_datasets(SETS[kind], test=Pairs([0, 1]), classes=3)
    assert held(made) == EXPECTED
    assert made.held_out.x.tolist() == X[:2].tolist()
    named = from_datasets(
        dict(zip("ab", SETS[kind], strict=True)), test_clients=["b"], classes=3, transform=None
    )
    assert (held(named), named.names) == (EXPECTED[:1], ("a",))
    assert (named.held_out.x.tolist(), named.held_out.y.tolist()) == EXPECTED[1]


def test_tables_with_columns_are_read_by_column() -> None:
    tables = [Table(r, text=["?"] * 3) for r in ROWS]
    made = from_datasets(tables, test=Table([0]), columns=("pixels", "label"), classes=3)
    assert held(made) == EXPECTED
    assert set(tables[0].asked) == {0, "pixels", "label"}  # the first is looked at twice
    rows = [[{"x": X[i], "y": Y[i]} for i in r] for r in ROWS]  # without columns of their own
    assert held(from_datasets(rows, rows[0], columns=("x", "y"), classes=3)) == EXPECTED


def test_token_ids_of_a_table_stay_integers() -> None:
    table = Table(ROWS[0], input_ids=[[1, 2], [3, 4], [5, 6]])
    made = from_datasets([table], table, columns=("input_ids", "label"), classes=3)
    assert made.inputs(made.x).tolist() == [[1, 2], [3, 4], [5, 6]]
    assert made.inputs(made.x).dtype == torch.int64


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))

    def __len__(self) -> int:
        return 3


def unreadable(x: Any) -> Any:
    if x[0] == X[1, 0]:
        raise OSError("image file is truncated")
    return x


WRONG: dict[str, tuple[Any, dict[str, Any], str]] = {
    "one": (ALL, {}, "`datasets` is of type TensorDataset; give a list with the data set of each"),
    "splits": ({"train": ALL, "test": ALL}, {}, "'train', 'test' are splits of one data set and"),
    "a split too many": ([{"train": ALL}], {}, r"client 0 is a dict \(train\); give one of its"),
    "a stream": ([Stream()], {}, "client 0 is of type Stream, which has no i-th sample"),
    "a generator": ([iter([1])], {}, "client 0 is of type list_iterator, which has no i-th"),
    "nothing": ([[]], {}, "client 0 has no samples; leave it out"),
    "single": ([TensorDataset(torch.tensor(X))], {}, "its samples are of 1 part; give pairs"),
    "columns": ([Table([0])], {}, "client 0 has columns pixels, label; name those of inputs and"),
    "no such": ([Table([0])], {"columns": ("x", "label")}, "client 0 has columns pixels, label;"),
    "one column": ([Table([0])], {"columns": "label"}, "columns='label'; give two"),
    "columns of pairs": ([ALL], {"columns": ("x", "y")}, "has no columns, but pairs; leave"),
    "crops": ([Pairs([0], lambda x: x + np.random.default_rng().normal())], {},
        "gives two results for its first sample, as random crops do"),
    "not a number": ([[([float("nan")], 0)]], {}, "inputs hold NaN or infinity at row 0"),
    "lengths": ([[([1, 2], 0), ([1, 2, 3], 1)]], {},
        r"sample 1 has shape \(3,\), and the first \(2,\); make them alike, as by padding"),
    "no array": ([[([[1], [1, 2]], 0)]], {}, "client 0 holds what is no array"),
    "broken": ([ALL, Pairs([0, 1], unreadable)], {},
        "client 1: its sample 1 cannot be read: OSError: image file is truncated"),
    "text": ([[("a", 0)]], {}, "inputs cannot be made an array of numbers .they are text"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_data_set_by_client_is_refused(case: str) -> None:
    given, more, said = WRONG[case]
    with pytest.raises(BadInput, match=said):
        from_datasets(given, ALL, **more, classes=3)
