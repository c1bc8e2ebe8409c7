"""How objects show themselves: in a line, and in a notebook as a table."""

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from html import escape
from typing import Any


def call_of(value: Any) -> str:
    """Return a dataclass as the call that makes it, without the fields that have their default.

    >>> from fedmix import Exchange
    >>> call_of(Exchange(m=5, average=1))
    'Exchange(m=5)'
    """
    given = [
        f"{f.name}={getattr(value, f.name)!r}"
        for f in fields(value)
        if f.default is MISSING or getattr(value, f.name) != f.default
    ]
    return f"{type(value).__name__}({', '.join(given)})"


def in_words(metrics: Mapping[str, float]) -> str:
    """Return metrics as text, an accuracy in percent.

    >>> in_words({"accuracy": 0.653, "loss": 1.25})
    'accuracy 65.3 %, loss 1.25'
    """
    return ", ".join(
        f"{name} {100 * value:.1f} %" if name.endswith("accuracy") else f"{name} {value:.4g}"
        for name, value in metrics.items()
    )


def counted(number: int, what: str) -> str:
    """Return a number of things.

    >>> counted(1, "round"), counted(2, "round")
    ('1 round', '2 rounds')
    """
    return f"{number} {what}{'' if number == 1 else 's'}"


def megabytes(up: int, down: int) -> str:
    """Return what was sent as text.

    >>> megabytes(3_830_000, 3_920_000)
    '3.83 MB up, 3.92 MB down'
    """
    return f"{up / 1e6:.3g} MB up, {down / 1e6:.3g} MB down"


def as_html(rows: Iterable[Iterable[object]], head: Iterable[object] = ()) -> str:
    """Return rows as an HTML table; the first cell names its row."""

    def line(tag: str, cells: Iterable[object]) -> str:
        return "".join(f'<{tag} style="text-align: left">{escape(str(c))}</{tag}>' for c in cells)

    top = line("th", head)
    body = "".join(
        f"<tr>{line('th', [first])}{line('td', rest)}</tr>" for first, *rest in map(list, rows)
    )
    return f"<table>{f'<thead><tr>{top}</tr></thead>' if top else ''}<tbody>{body}</tbody></table>"
