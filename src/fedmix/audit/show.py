"""The audit as a table for the terminal and the page, and as JSON."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fedmix.audit.findings import Finding, findings
from fedmix.audit.grid import Cell, Grid
from fedmix.audit.rates import Rates

if TYPE_CHECKING:
    from rich.console import Group

HEADERS = (
    "M", "σ", "ε proven", "ε shown", "member: server", "member: client", "averaged", "named", "blind, dB", "labels", "owner",
    "averaged", "change: server", "client", "averaged", "waiting", "both",
)  # fmt: skip


def caption(grid: Grid) -> str:
    """What the columns are."""
    return (
        "Member: AUC of telling used samples from others, by who knows how samples are distributed (share found at one false "
        f"alarm in 1,000). Averaged: where the server averages {grid.average} means. ε shown: a lower bound at 95 % confidence, "
        "by who knows all other samples. Named: share of a mean's samples named from a list of suspects (by chance). Blind: PSNR "
        "of a guess at one sample without a list (of its class's mean). Labels: means whose label counts are read exactly. "
        "Owner: entries linked to their client by label shares and five known samples (by chance). Change: PSNR in dB of a "
        f"sample that replaced another, recovered from two refreshes (100: exactly). Waiting: until {grid.wait:.0%} of the "
        "clients changed. An attack that fails proves nothing, for a better one may exist; a proven ε holds against all."
    )


def row(cell: Cell) -> list[str]:
    """One setting's figures, in the order of HEADERS."""
    now, averaged, waiting, both = cell.differencing
    r = cell.reconstruction
    return [
        str(cell.m),
        f"{cell.how.noise:.3g}",
        f"{cell.guarantee.epsilon:.3g}" if cell.guarantee else "none",
        f"≥ {cell.neighbours.epsilon:.2f}",
        _rates(cell.server),
        _rates(cell.client),
        _rates(cell.together),
        f"{r.identified:.0%} ({r.chance:.0%})",
        f"{r.blind.psnr:.1f} ({r.unseen.psnr:.1f})",
        f"{cell.labels.known:.0%}",
        f"{cell.linking.samples:.0%} ({cell.linking.chance:.0%})",
        f"{cell.linking_together.samples:.0%} ({cell.linking_together.chance:.0%})",
        f"{now.server:.0f}",
        f"{now.client:.0f}",
        f"{averaged.client:.0f}",
        f"{waiting.client:.0f}",
        f"{both.client:.0f}",
    ]


def terminal(cells: Sequence[Cell], grid: Grid) -> "Group":
    """What was found, then the table in parts as wide as a terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    parts = []
    for columns in ((0, 1, 2, 3, 4, 5, 6), (0, 1, 7, 8, 9, 10, 11), (0, 1, 12, 13, 14, 15, 16)):
        table = Table(box=SIMPLE_HEAD)
        for column in columns:
            table.add_column(HEADERS[column], justify="right")
        for cell in cells:
            table.add_row(*(row(cell)[column] for column in columns))
        parts.append(table)
    said = [text for finding in findings(cells, grid) for text in _paragraphs(finding)]
    return Group(*said, *parts, Text(caption(grid)))


def as_json(cells: Sequence[Cell], grid: Grid, about: dict[str, Any]) -> str:
    """Everything but the pictures."""
    value = about | {
        "kind": "audit",
        "grid": {k: v for k, v in asdict(grid).items() if k not in ("base", "sizes", "noises")},
        "findings": [finding._asdict() for finding in findings(cells, grid)],
        "cells": [_plain(cell) for cell in cells],
    }
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _rates(rates: Rates) -> str:
    return f"{rates.auc:.3f} ({rates.tpr:.1%})"


def _paragraphs(finding: Finding) -> list[Any]:
    from rich.text import Text

    return [Text(finding.title, style="bold"), Text(finding.leaked), Text(f"{finding.sure} {finding.stops}\n")]


def _plain(cell: Cell) -> dict[str, Any]:
    """Numbers that JSON knows: an infinite ε is none."""
    guarantee = cell.guarantee
    return {
        "m": cell.m,
        "group": cell.group,
        "exchange": {k: v for k, v in asdict(cell.how).items() if v is not None},
        "epsilon": guarantee.epsilon if math.isfinite(guarantee.epsilon) else None,
        "guarantee": str(guarantee),
        "membership": {name: getattr(cell, name)._asdict() for name in ("server", "client", "together")},
        "neighbours": cell.neighbours.rates._asdict() | {"epsilon": cell.neighbours.epsilon},
        "labels": cell.labels._asdict(),
        "linking": {"alone": cell.linking._asdict(), "together": cell.linking_together._asdict()},
        "reconstruction": {k: v._asdict() if hasattr(v, "_asdict") else v for k, v in cell.reconstruction._asdict().items()},
        "differencing": [d._asdict() for d in cell.differencing],
    }
