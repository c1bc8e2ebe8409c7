"""Rows by client as two arrays, and what is counted and changed in them, by hand."""

from typing import Any

import numpy as np
import pytest

from fedmix.data import FederatedData, Ragged, from_arrays

X, Y = np.zeros((8, 1)), np.array([0, 1, 2, 2, 1, 0, 2, 2])
ROWS = [[6, 2, 3], [0], [4, 1]]


def made() -> FederatedData:
    return from_arrays(X, Y, ROWS, (X, Y), classes=4)


def test_class_counts() -> None:
    """Client 0 holds three of class 2, client 1 one of class 0, client 2 two of class 1; class 3
    has nobody, row 7 no owner.
    """
    counts = made().class_counts()
    assert counts is not None
    assert counts.tolist() == [[0, 0, 3, 0], [1, 0, 0, 0], [0, 2, 0, 0]]
    assert from_arrays(X, X, ROWS, (X, X)).class_counts() is None


def test_labels_of_any_integer_type_are_counted() -> None:
    counts = from_arrays(X, Y.astype(np.uint64), ROWS, (X, Y), classes=3).class_counts()
    assert counts is not None
    assert counts.sum(1).tolist() == [3, 1, 2]


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.uint32, np.uint64, np.int8, np.int32])
def test_labels_of_any_integer_type_become_vectors(kind: type[np.integer[Any]]) -> None:
    """As training and testing make them, of tensors of their type."""
    data = from_arrays(X, Y.astype(kind), ROWS, (X, Y.astype(kind)), classes=4)
    for labels in (data.y, data.held_out.y):
        np.testing.assert_array_equal(data.labels(labels).numpy(), np.eye(4)[Y])


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {0: [5]},
        {1: [5, 6, 7]},
        {2: [0, 1, 2, 3]},
        {2: [7], 0: [1, 1]},
        {0: [0], 1: [1], 2: [2]},
    ],
    ids=str,
)
def test_other_rows_for_some(changed: dict[int, list[int]]) -> None:
    data = made()
    after = data.with_clients(changed)
    assert [after.clients[k].tolist() for k in range(3)] == [
        changed.get(k, ROWS[k]) for k in range(3)
    ]
    assert [data.clients[k].tolist() for k in range(3)] == ROWS
    assert after.x is data.x


def test_whose_row_it_is() -> None:
    rows = Ragged.of([[6, 2, 3], [], [0], [4, 1]])
    assert rows.owner.tolist() == [0, 0, 0, 2, 3, 3]
