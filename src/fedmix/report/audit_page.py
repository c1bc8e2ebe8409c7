"""The audit as one self-contained HTML file with pictures and without scripts."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedmix.core.types import Array
from fedmix.privacy.audit.differencing import Change
from fedmix.privacy.audit.findings import findings, named
from fedmix.privacy.audit.grid import Attacked, Grid
from fedmix.privacy.audit.reconstruction import Attempt
from fedmix.report.audit_table import WARNING, tables
from fedmix.report.files import write
from fedmix.report.gallery import png
from fedmix.report.page import filled, resource
from fedmix.report.tables import Table

PICTURES = 5  # per setting


class Shown(NamedTuple):
    """Pictures of one setting: rows, each with a title and pictures as data URLs."""

    title: str
    rows: Sequence[tuple[str, Sequence[str]]]


def write_html(
    cells: Sequence[Attacked], grid: Grid, about: dict[str, Any], shape: tuple[int, ...], path: Path
) -> None:
    """Write the page; the arguments are those of `page`.

    Raises:
        BadInput: The path cannot be written.
    """
    write(path, page(cells, grid, about, shape).encode())


def page(
    cells: Sequence[Attacked], grid: Grid, about: dict[str, Any], shape: tuple[int, ...]
) -> str:
    """Return the page as text.

    Args:
        cells: The attacked settings.
        grid: The grid of the audit.
        about: Values of the page's header, such as `data`.
        shape: Shape of a picture, (C, H, W).
    """
    from markupsafe import Markup

    return filled(
        resource("audit_page.html.j2"),
        title=f"fedmix audit: {about['data']}",
        css=Markup(resource("page.css")),
        about=about,
        findings=findings(cells, grid),
        tables=[_named(table) for table in tables(cells, grid)],
        warning=WARNING,
        means=[Shown(named(cell), _means(cell.attempts[:PICTURES], shape)) for cell in cells],
        changes=[Shown(named(cell), _changes(cell.changes[:PICTURES], shape)) for cell in cells],
    )


def _named(table: Table) -> Table:
    """Return the table with rows that name their number, for screens that show no header."""
    return replace(table, rows=[(f"M = {m}", *figures) for m, *figures in table.rows])


def _means(attempts: Sequence[Attempt], shape: tuple[int, ...]) -> list[tuple[str, list[str]]]:
    return [
        ("a sample", [_picture(a.original, shape) for a in attempts]),
        ("the mean it is in", [_picture(a.mean, shape) for a in attempts]),
        ("a blind guess", [_picture(a.blind, shape) for a in attempts]),
        ("nearest public picture", [_picture(a.nearest, shape) for a in attempts]),
        ("nearest suspect named", [_picture(a.named, shape) for a in attempts]),
    ]


def _changes(changes: Sequence[Change], shape: tuple[int, ...]) -> list[tuple[str, list[str]]]:
    return [
        ("the old sample", [_picture(c.old, shape) for c in changes]),
        ("the new sample", [_picture(c.new, shape) for c in changes]),
        ("as the server recovers it", [_picture(c.old + c.server, shape) for c in changes]),
        ("as a client recovers it", [_picture(c.old + c.client, shape) for c in changes]),
    ]


def _picture(flat: Array, shape: tuple[int, ...]) -> str:
    return png(np.clip(flat, 0, 1).reshape(shape))
