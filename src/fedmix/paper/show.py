"""A comparison for the terminal, as Markdown and as JSON."""

import json
import math
from typing import TYPE_CHECKING, Any

from fedmix.paper.comparison import Compared, Comparison
from fedmix.paper.study import Study
from fedmix.report.tables import Beside, Cell, Column, Table

if TYPE_CHECKING:
    from rich.console import Group

SCORES = {
    "last": "after the last round",
    "best": "of the best round (picked by looking at the test set)",
    "last-ten": "as the mean of the last ten evaluations",
    "late": "as the mean of the evaluations in the last quarter of the rounds",
}


def caption(comparison: Comparison) -> str:
    """Return a sentence that says what the numbers are."""
    seeds = len(comparison.study.seeds)
    over = "one seed" if seeds == 1 else f"mean ± sample deviation over {seeds} seeds"
    source = comparison.study.table.source
    theirs = f" The paper's: {source}, without deviations." if source else ""
    return (
        f"Ours: {over}{_other_rounds(comparison.study)}, accuracy "
        f"{SCORES[comparison.protocol]}.{theirs}"
    )


def _other_rounds(study: Study) -> str:
    """Say how many rounds the runs have, if the table's titles say otherwise."""
    ours, titled = (
        sorted({e.rounds for e in each})
        for each in (study.experiments(), study.table.experiments())
    )
    return "" if ours == titled else f", {_listed(ours)} rounds instead of {_listed(titled)}"


def _listed(numbers: list[int]) -> str:
    return " or ".join(map(str, numbers))


def table(comparison: Comparison) -> Table:
    """Return a row for each row of the paper's table, then the count of pairs in its order.

    A table that is not the paper's has our numbers only.
    """
    shown = comparison.study.table
    if not shown.paper:
        alone: list[list[Cell]] = [
            [cells[0].row.title, *(c.text() for c in cells)] for cells in comparison.cells
        ]
        names = [Column("ours", right=False, wrap=True)]
        return Table([*names, *(Column(c.title, wrap=True) for c in shown.columns)], alone)
    orders = [comparison.order(i) for i in range(len(shown.columns))]
    rows: list[list[Cell]] = [
        [cells[0].row.title, *(Beside(c.text(), c.paper_text()) for c in cells)]
        for cells in comparison.cells
    ]
    pairs = (f"{agree} of {known}" if known else "–" for agree, known in orders)
    rows.append(["pairs in the paper's order", *pairs])
    columns = [
        Column("ours (the paper's)", right=False, wrap=True, stacked="ours\npaper"),
        *(
            Column(c.title, wrap=True, stacked=c.title.replace(", ", "\n", 1))
            for c in shown.columns
        ),
    ]
    return Table(columns, rows)


def statements(comparison: Comparison) -> list[str]:
    """Return the differences, each as a sentence."""
    return [difference.text() for difference in comparison.differences()]


def terminal(comparison: Comparison) -> "Group":
    """Return the table, with our numbers above the paper's, then differences and notes."""
    from rich.console import Group
    from rich.text import Text

    warnings = [Text(f"{said}.", style="bold") for said in comparison.study.warnings]
    title = Text(comparison.study.table.title)
    below = [
        caption(comparison),
        *statements(comparison),
        *(f"Note. {note}" for note in comparison.notes()),
    ]
    return Group(*warnings, title, table(comparison).rich(), *map(Text, below))


def markdown(comparison: Comparison) -> str:
    """Return the table, with the paper's numbers in brackets, and all notes on it."""
    shown = comparison.study.table
    lines = [f"**{shown.title}** (`fedmix reproduce {shown.name}`)", ""]
    lines += [f"**{said}.**\n" for said in comparison.study.warnings]
    lines += [table(comparison).markdown(), "", caption(comparison), ""]
    lines += [f"- {said}" for said in (*statements(comparison), *comparison.notes())]
    return "\n".join(lines) + "\n"


def as_json(comparison: Comparison) -> str:
    """Return everything as JSON, with the value of every seed and the runs behind it."""
    study, shown = comparison.study, comparison.study.table
    orders = [comparison.order(i) for i in range(len(shown.columns))]
    value: dict[str, Any] = {
        "table": shown.name,
        "title": shown.title,
        "source": shown.source,
        "scale": study.scale,
        "warnings": study.warnings,
        "changes": dict(study.changes),
        "score": comparison.protocol,
        "seeds": list(study.seeds),
        "cells": [_cell(comparison, cell) for row in comparison.cells for cell in row],
        "order": {
            c.name: {"agree": a, "pairs": n}
            for c, (a, n) in zip(shown.columns, orders, strict=True)
        },
        "differences": statements(comparison),
        "notes": comparison.notes(),
    }
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _cell(comparison: Comparison, cell: Compared) -> dict[str, Any]:
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
