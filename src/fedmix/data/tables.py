"""Parquet tables, read in batches; damaged files raise a DataError with the file's name."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedmix.core.errors import BadInput, DataError, first_line
from fedmix.core.files import printable
from fedmix.core.types import Array

BATCH = 8192
INSTALL = "reading this data needs pyarrow and Pillow; run: pip install 'fedmix[data]'"


def damaged(path: Path, what: str) -> DataError:
    """Make the error for a damaged file.

    Deleting a link of the hub's cache would not help, so the message names the file it points to.
    """
    culprit = path.resolve() if path.is_symlink() else "the file"
    return DataError(f"{path}: {printable(what)}; delete {culprit} and fetch it again")


def count(files: Sequence[Path]) -> int:
    """Number of rows of all files together; raise DataError if there are none."""
    rows = sum(int(_open(path).metadata.num_rows) for path in files)
    if rows == 0:
        raise damaged(files[0], "the table has no rows")
    return rows


def batches(files: Sequence[Path], columns: Sequence[str]) -> Iterator[tuple[Path, Any]]:
    """Yield record batches with these columns, each with its file; show progress if it takes long.

    Raises DataError if a file is damaged or lacks a column.
    """
    start, shown, done, total = time.monotonic(), False, 0, count(files)
    for path in files:
        table = _open(path)
        with reading(path):
            names = table.schema_arrow.names
        for column in columns:
            if names.count(column) != 1:
                said = "is no" if column not in names else "is more than one"
                raise damaged(
                    path, f"there {said} column {column!r}, only {', '.join(names)[:200]}"
                )
        for batch in _guarded(path, table.iter_batches(BATCH, columns=list(columns))):
            yield path, batch
            done += batch.num_rows
            if sys.stderr.isatty() and time.monotonic() - start > 2:
                shown = True
                print(
                    f"\rdecoding {path}: {done / total:4.0%}", end="", file=sys.stderr, flush=True
                )
    if shown:
        print(file=sys.stderr)


def _open(path: Path) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise BadInput(INSTALL) from error
    with reading(path, "this is no whole parquet file"):
        return pyarrow.parquet.ParquetFile(path)


@contextmanager
def reading(path: Path, what: str = "the table is damaged") -> Iterator[None]:
    """Turn errors raised in this context (Arrow's, and text that is not UTF-8) into a DataError."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise damaged(path, f"{what} ({first_line(error)})") from error


def _guarded(path: Path, reader: Iterator[Any]) -> Iterator[Any]:
    """Yield from `reader`; its errors, but not those of the loop around, become a DataError."""
    while True:
        with reading(path):
            batch = next(reader, None)
        if batch is None:
            return
        yield batch


def labels(path: Path, column: Any, classes: int) -> Array:
    """Convert a column to integer labels in 0..classes-1; raise DataError if it holds others."""
    import pyarrow

    if not pyarrow.types.is_integer(column.type) or column.null_count:
        raise damaged(
            path, f"labels are {column.type} with {column.null_count} missing, not integers"
        )
    values: Array = column.to_numpy(zero_copy_only=False).astype(np.int64)
    outside = values[(values < 0) | (values >= classes)]
    if len(outside):
        raise damaged(path, f"label {outside[0]} is outside 0..{classes - 1}")
    return values
