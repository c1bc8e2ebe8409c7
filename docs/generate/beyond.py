"""The tables of docs/beyond.md, which benchmarks/beyond.py makes."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from benchmarks import beyond

RESULTS = Path(__file__).parents[1] / "results" / "beyond.jsonl"


def _table(name: str) -> str:
    return beyond.tables(RESULTS)[name]


def frontier(path: Path) -> None:
    """Draw accuracy against ε, and against what a curious server finds."""
    beyond.draw(beyond.read(RESULTS), beyond.recovered(RESULTS), path)


PARTS: Mapping[str, Callable[[], str]] = {
    name: partial(_table, name) for name in (*beyond.TABLES, "recovered")
}
