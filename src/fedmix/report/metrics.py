"""metrics.jsonl as arrays, with one row per round."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from fedmix.core.errors import BadInput
from fedmix.report.files import read
from fedmix.runs.store import METRICS

Array = np.ndarray[Any, np.dtype[np.float64]]
LAST = 1 << 53  # floats do not hold all integers beyond this


def read_metrics(path: Path) -> dict[str, Array]:
    """Return a column for each of METRICS: NaN where there is no value, infinite if not finite.

    A last line that does not parse was cut off by a kill or is being written; it is ignored.

    Raises:
        BadInput: Another line is not valid, or rounds do not increase.
    """
    lines = [
        (number, line) for number, line in enumerate(read(path).split(b"\n"), 1) if line.strip()
    ]
    rows: list[list[float]] = []
    for number, line in lines:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            if number == lines[-1][0]:
                break
            raise BadInput(
                f"{path}, line {number}, is not valid JSON; restore the file or leave this run out"
            ) from None
        _add(rows, entry, f"{path}, line {number}")
    return _columns(rows)


def packed_metrics(columns: Any, path: Path) -> dict[str, Array]:
    """Return the same columns of a run in a store.

    Args:
        columns: What the store holds, "" where a round has no such value.
        path: The run, for messages.

    Raises:
        BadInput: The columns are not valid, or rounds do not increase.
    """
    try:
        known = {name: columns[name] for name in METRICS if name in columns}
        entries = [
            {name: value for name, value in zip(known, values, strict=True) if value != ""}
            for values in zip(*known.values(), strict=True)
        ]
    except (TypeError, ValueError):
        raise BadInput(f"{path}: metrics are not columns of equal length; restore it") from None
    rows: list[list[float]] = []
    for entry in entries:
        _add(rows, entry, f"{path}: metrics")
    return _columns(rows)


def _columns(rows: list[list[float]]) -> dict[str, Array]:
    table = np.array(rows, np.float64).reshape(-1, len(METRICS))
    return {name: table[:, i] for i, name in enumerate(METRICS)}


def _add(rows: list[list[float]], entry: object, where: str) -> None:
    """Add the row of an entry; raise BadInput if it is not valid or not after the one before."""
    rows.append(_row(entry, where))
    if len(rows) > 1 and not rows[-1][0] > rows[-2][0]:
        raise BadInput(
            f"{where}: round {rows[-1][0]:g} comes after round {rows[-2][0]:g}; restore the file"
        )


def _row(entry: object, where: str) -> list[float]:
    if (
        not isinstance(entry, dict)
        or not isinstance(entry.get("round"), int)
        or not 1 <= entry["round"] < LAST
    ):
        raise BadInput(
            f"{where}, is not an object with a round from 1 on; restore the file or leave this run "
            "out"
        )
    return [_number(entry, name, where) for name in METRICS]


def _number(entry: dict[str, Any], name: str, where: str) -> float:
    if name not in entry:
        return math.nan
    value = entry[name]
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise BadInput(f"{where}: {name} is not a number; restore the file or leave this run out")
    try:
        return float(value) if value is not None and math.isfinite(value) else math.inf
    except OverflowError:  # an integer that is too large for a float
        return math.inf
