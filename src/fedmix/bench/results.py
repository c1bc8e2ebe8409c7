"""What was measured: records that other programs can write too, their file, and their table."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any

from fedmix.core.errors import BadInput
from fedmix.core.files import parse_json, printable, read_within
from fedmix.report.tables import Column, Table

LARGEST = 16 << 20  # bytes of a file


@dataclass(frozen=True)
class Record:
    """Results of one variant on one workload; `benchmarks/README.md` explains the fields."""

    workload: str
    algorithm: str
    variant: str
    ms_per_step: float
    low: float
    high: float
    device: str = "cpu"
    clients: int | None = None
    batch: int | None = None
    steps: float | None = None
    repeats: int | None = None
    speedup: float | None = None
    warmup_s: float | None = None
    threads: int | None = None
    workers: int | None = None
    peak_mib: float | None = None
    round_ms: float | None = None
    outside: float | None = None
    padding: float | None = None
    precision: str | None = None
    share: float | None = None


REQUIRED = ("workload", "algorithm", "variant", "ms_per_step", "low", "high")
WORDS = ("workload", "algorithm", "variant", "device", "precision")


def with_speedups(records: Sequence[Record]) -> list[Record]:
    """Add to each record of one file its speed-up over that file's plain loop."""
    plain = {
        (r.workload, r.algorithm, r.device): r.ms_per_step for r in records if r.variant == "plain"
    }

    def against(record: Record) -> float | None:
        base = plain.get((record.workload, record.algorithm, record.device))
        return record.speedup if base is None else base / record.ms_per_step

    return [replace(r, speedup=against(r)) for r in records]


def content(kind: str, about: dict[str, Any], records: Sequence[Any], notes: Sequence[str]) -> str:
    """Return records, all of one dataclass, with what they were measured on, as JSON."""
    names = [Column(field.name) for record in records[:1] for field in fields(record)]
    rows = Table(names, [astuple(record) for record in records]).objects()
    whole = {"kind": kind, **about, "notes": list(notes), "records": rows}
    return json.dumps(whole, indent=1, allow_nan=False) + "\n"


def read_steps(path: Path) -> list[Record]:
    """Read the records of a file, written by fedmix or another program; BadInput if it is wrong."""
    text = read_within(path, LARGEST, "give a file that 'fedmix bench steps --out' wrote")
    try:
        rows = parse_json(text)["records"]
        known = {f.name for f in fields(Record)}
        records = [
            Record(**{name: value for name, value in row.items() if name in known}) for row in rows
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        needed = ", ".join(REQUIRED)
        raise BadInput(
            f"{path} holds no records of steps; each needs {needed} (benchmarks/README.md)"
        ) from None
    for record in records:
        _check(record, path)
    return with_speedups(records)


def _check(record: Record, path: Path) -> None:
    for field in fields(Record):
        value = getattr(record, field.name)
        if value is None and field.name not in REQUIRED:
            continue
        number = (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and math.isfinite(value)
            and value >= 0
        )
        if not (isinstance(value, str) if field.name in WORDS else number):
            raise BadInput(
                f"{path}: {field.name}={printable(value)[:40]!r} is not {_should(field.name)}; "
                "correct it"
            )
    if not record.ms_per_step or record.speedup == 0:
        raise BadInput(
            f"{path}: a step of {printable(record.variant)} takes no time; ms_per_step and speedup "
            "must be above 0"
        )


def _should(name: str) -> str:
    return "text" if name in WORDS else "a finite number of at least 0"


COLUMNS: dict[str, Callable[[Record], str]] = {
    "ms": lambda r: _digits(r.ms_per_step),
    "range": lambda r: f"{_digits(r.low)}–{_digits(r.high)}",
    "vs plain": lambda r: "" if r.speedup is None else f"{_digits(r.speedup)}x",
    "share": lambda r: "" if r.share is None else f"{100 * r.share:.0f} %",
    "warm-up": lambda r: "" if r.warmup_s is None else f"{r.warmup_s:.1f} s",
    "threads": lambda r: (
        "" if r.threads is None else f"{r.workers}x{r.threads}" if r.workers else f"{r.threads}"
    ),
    "MiB": lambda r: "" if r.peak_mib is None else f"{r.peak_mib:.0f}",
    "outside": lambda r: "" if r.outside is None else f"{100 * r.outside:.1f} %",
    "padding": lambda r: f"{100 * r.padding:.0f} %" if r.padding else "",
}


def table(records: Sequence[Record]) -> Table:
    """The records, with the columns that somebody fills, below what is trained."""
    filled = {name: of for name, of in COLUMNS.items() if any(of(record) for record in records)}
    names = (Column(name, right=False, wrap=True) for name in ("workload", "variant"))
    return Table(
        [*names, *map(Column, filled)],
        [[_heading(r), printable(r.variant), *(of(r) for of in filled.values())] for r in records],
        gap=2,
        grouped=True,
    )


def _heading(record: Record) -> str:
    """What was trained.

    >>> _heading(Record("lenet", "fedmix", "plain", 1.0, 1.0, 1.0, clients=10, batch=10))
    'lenet fedmix, 10x10'
    """
    size = f", {record.clients}x{record.batch}" if record.clients and record.batch else ""
    return printable(
        f"{record.workload} "
        f"{record.algorithm}{size}{'' if record.device == 'cpu' else f', {record.device}'}"
    )


def _digits(number: float) -> str:
    """Format a number with three significant digits.

    >>> [_digits(n) for n in (0.12345, 3.14159, 27.18, 1234.5)]
    ['0.123', '3.14', '27.2', '1234']
    """
    return f"{number:.{max(0, 2 - math.floor(math.log10(number)))}f}" if number > 0 else "0"
