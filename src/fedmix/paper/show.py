"""A comparison for the terminal, as Markdown and as JSON."""

import json
import math
from typing import TYPE_CHECKING, Any

from fedmix.paper.comparison import Cell, Comparison
from fedmix.paper.study import Study

if TYPE_CHECKING:
    from rich.console import Group

SCORES = {
    "last": "after the last round",
    "best": "of the best round (picked by looking at the test set)",
    "last-ten": "as the mean of the last ten evaluations",
}


def caption(comparison: Comparison) -> str:
    """What the numbers are."""
    seeds = len(comparison.study.seeds)
    over = "one seed" if seeds == 1 else f"mean ± sample deviation over {seeds} seeds"
    theirs = f"The paper's: {comparison.study.table.source}, without deviations"
    return (
        f"Ours: {over}{_other_rounds(comparison.study)}, accuracy "
        f"{SCORES[comparison.protocol]}. {theirs}."
    )


def _other_rounds(study: Study) -> str:
    """How long the runs are where that is not as long as the table's titles say."""
    ours, titled = (
        sorted({e.rounds for e in each})
        for each in (study.experiments(), study.table.experiments())
    )
    return "" if ours == titled else f", {_listed(ours)} rounds instead of {_listed(titled)}"


def _listed(numbers: list[int]) -> str:
    return " or ".join(map(str, numbers))


def both_texts(cell: Cell) -> str:
    """Ours, and the paper's in brackets."""
    return f"{cell.text()} ({cell.paper_text()})"


def order_texts(comparison: Comparison) -> list[str]:
    """For each column, how many pairs of rows are in the paper's order."""
    orders = [comparison.order(i) for i in range(len(comparison.study.table.columns))]
    return [f"{agree} of {pairs}" if pairs else "–" for agree, pairs in orders]


def statements(comparison: Comparison) -> list[str]:
    """Differences, each in a sentence."""
    return [difference.text() for difference in comparison.differences()]


def terminal(comparison: Comparison) -> "Group":
    """Rows with ours above and the paper's below; then the order, the differences and the notes."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = comparison.study.table
    drawn = Table(box=SIMPLE_HEAD, show_lines=True)
    drawn.add_column("ours\npaper", overflow="fold")
    for column in table.columns:
        drawn.add_column(column.title.replace(", ", "\n", 1), justify="right")
    for cells in comparison.cells:
        drawn.add_row(
            Text(cells[0].row.title),
            *(Text(f"{c.text()}\n") + Text(c.paper_text(), style="dim") for c in cells),
        )
    drawn.add_row("pairs in the paper's order", *order_texts(comparison))
    warnings = [Text(f"{said}.", style="bold") for said in comparison.study.warnings]
    below = [
        caption(comparison),
        *statements(comparison),
        *(f"Note. {note}" for note in comparison.notes()),
    ]
    return Group(*warnings, Text(table.title), drawn, *map(Text, below))


def markdown(comparison: Comparison) -> str:
    """A table with the paper's numbers in brackets, and all that belongs to it."""
    table = comparison.study.table
    lines = [f"**{table.title}** (`fedmix reproduce {table.name}`)", ""]
    lines += [f"**{said}.**\n" for said in comparison.study.warnings]
    lines += [
        f"| ours (the paper's) | {' | '.join(c.title for c in table.columns)} |",
        "|---" * (len(table.columns) + 1) + "|",
    ]
    lines += [
        f"| {row[0].row.title} | {' | '.join(both_texts(c) for c in row)} |"
        for row in comparison.cells
    ]
    lines += [
        f"| *pairs in the paper's order* | {' | '.join(order_texts(comparison))} |",
        "",
        caption(comparison),
        "",
    ]
    lines += [f"- {said}" for said in (*statements(comparison), *comparison.notes())]
    return "\n".join(lines) + "\n"


def as_json(comparison: Comparison) -> str:
    """Everything, with the value of every seed and the runs behind it."""
    study, table = comparison.study, comparison.study.table
    orders = [comparison.order(i) for i in range(len(table.columns))]
    value: dict[str, Any] = {
        "table": table.name,
        "title": table.title,
        "source": table.source,
        "scale": study.scale,
        "warnings": study.warnings,
        "changes": dict(study.changes),
        "score": comparison.protocol,
        "seeds": list(study.seeds),
        "cells": [_cell(comparison, cell) for row in comparison.cells for cell in row],
        "order": {
            c.name: {"agree": a, "pairs": n}
            for c, (a, n) in zip(table.columns, orders, strict=True)
        },
        "differences": statements(comparison),
        "notes": comparison.notes(),
    }
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _cell(comparison: Comparison, cell: Cell) -> dict[str, Any]:
    row, column = cell.row.name, cell.column.name
    return {
        "row": row,
        "column": column,
        "metric": cell.metric.title,
        "paper": cell.paper,
        "mean": cell.spread.mean,
        "deviation": cell.spread.deviation,
        "text": cell.text(),
        "results": [
            {
                "seed": r.seed,
                "value": r.value if math.isfinite(r.value) else None,
                "never": math.isinf(r.value),
                "diverged": r.failure.round if r.failure and r.failure.kind == "diverged" else None,
                "collapsed": r.failure.round
                if r.failure and r.failure.kind == "collapsed"
                else None,
                "run": comparison.study.experiment(row, column, r.seed).id,
            }
            for r in cell.results
        ],
    }
