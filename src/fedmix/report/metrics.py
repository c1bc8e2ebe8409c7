"""metrics.jsonl as arrays, with one row per round."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from fedmix.core.errors import BadInput
from fedmix.report.files import read

Array = np.ndarray[Any, np.dtype[np.float64]]
LAST = 1 << 53  # floats do not hold all integers beyond this
NAMES = ("round", "accuracy", "mse", "loss", "local_loss", "seconds", "bytes_up", "bytes_down")


def read_metrics(path: Path) -> dict[str, Array]:
    """Return a column for each of NAMES: NaN if a round has no value, infinite if it is not finite.

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
        rows.append(_row(entry, f"{path}, line {number}"))
        if len(rows) > 1 and not rows[-1][0] > rows[-2][0]:
            raise BadInput(
                f"{path}, line {number}: round {rows[-1][0]:g} comes after round {rows[-2][0]:g}; "
                "restore the file"
            )
    table = np.array(rows, np.float64).reshape(-1, len(NAMES))
    return {name: table[:, i] for i, name in enumerate(NAMES)}


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
    return [_number(entry, name, where) for name in NAMES]


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
