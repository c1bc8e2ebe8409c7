"""The audit as tables for the terminal and the page, and as JSON."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmix.privacy.accounting import upwards
from fedmix.privacy.audit.findings import Finding, findings
from fedmix.privacy.audit.grid import Attacked, Grid
from fedmix.report.tables import Column, Table

if TYPE_CHECKING:
    from rich.console import Group

WARNING = (
    "An attack that fails proves nothing, for a better one may exist; a proven ε holds against all."
)


def tables(cells: Sequence[Attacked], grid: Grid) -> list[Table]:
    """Return all figures, in tables that fit a terminal."""

    def table(
        title: str,
        note: str,
        headers: tuple[str, ...],
        figures: Callable[[Attacked], tuple[str, ...]],
    ) -> Table:
        rows = [(str(cell.m), f"{cell.how.noise:.3g}", *figures(cell)) for cell in cells]
        columns = [Column(header, wrap=True) for header in ("M", "σ", *headers)]
        return Table(columns, rows, title, caption=note)

    return [
        table(
            "Was a sample used?",
            "AUC of telling used samples from others, by an attacker who knows how samples are "
            "distributed (share found at one false alarm in 1,000): the server, a client, and a "
            f"client where the server averages {grid.average} means. ε shown, by an attacker who "
            "knows all other samples: lower bounds that hold for all settings at once with 95 % "
            "confidence.",
            ("ε proven", "ε shown", "server", "client", "averaged"),
            _used,
        ),
        table(
            "Which pictures are in a mean?",
            "Named: share of a mean's samples named from a list of suspects (by chance). Blind: "
            "PSNR in dB and SSIM of a guess at one sample without a list. Nearest: PSNR of the "
            "public picture that is nearest to the mean. In brackets: what the mean of its class "
            "alone would give.",
            ("named", "blind, dB", "blind, SSIM", "nearest, dB"),
            _pictured,
        ),
        table(
            "Which classes are in it, and whose is it?",
            "Labels: means whose label counts are read exactly, if M is known and if it is not. "
            "Owner: entries linked to their client by label shares, and with five known samples "
            "of each client as well (by chance); averaged: the latter, where the server averages "
            f"{grid.average} means.",
            ("labels", "M unknown", "owner by labels", "by samples", "averaged"),
            _linked,
        ),
        table(
            "What does a refresh show?",
            "PSNR in dB of a sample that replaced another, recovered from two refreshes (100: "
            "exactly): by the server, by a client, by a client where the server averages "
            f"{grid.average}, where clients wait until {grid.wait:.0%} of them changed, and with "
            "both. Unseen: the old sample taken for the new.",
            ("server", "client", "averaged", "waiting", "both", "unseen"),
            _changed,
        ),
    ]


def _used(cell: Attacked) -> tuple[str, ...]:
    proven = upwards(cell.guarantee.epsilon) if cell.guarantee else "none"
    members = (
        f"{r.auc:.3f} ({r.tpr:.{0 if r.tpr >= 0.1 else 1}%})"
        for r in (cell.server, cell.client, cell.together)
    )
    return proven, f"≥ {cell.neighbours.epsilon:.2f}", *members


def _pictured(cell: Attacked) -> tuple[str, ...]:
    r = cell.reconstruction
    guesses = (
        f"{r.blind.psnr:.1f} ({r.unseen.psnr:.1f})",
        f"{r.blind.ssim:.2f} ({r.unseen.ssim:.2f})",
    )
    return (
        f"{r.identified:.0%} ({r.chance:.0%})",
        *guesses,
        f"{r.nearest.psnr:.1f} ({r.unseen.psnr:.1f})",
    )


def _linked(cell: Attacked) -> tuple[str, ...]:
    alone, mixed = cell.linking, cell.linking_together
    shares = (
        (alone.labels, alone.chance),
        (alone.samples, alone.chance),
        (mixed.samples, mixed.chance),
    )
    return (
        f"{cell.labels.known:.0%}",
        f"{cell.labels.inferred:.0%}",
        *(f"{a:.0%} ({b:.0%})" for a, b in shares),
    )


def _changed(cell: Attacked) -> tuple[str, ...]:
    unseen = float(np.mean([d.unseen for d in cell.differencing]))
    return tuple(
        str(round(psnr))
        for psnr in (cell.differencing[0].server, *(d.client for d in cell.differencing), unseen)
    )


def terminal(cells: Sequence[Attacked], grid: Grid) -> "Group":
    """Return the findings, then the tables."""
    from rich.console import Group
    from rich.text import Text

    parts = [text for finding in findings(cells, grid) for text in _paragraphs(finding)]
    for table in tables(cells, grid):
        parts += [table.rich(), Text()]
    return Group(*parts, Text(WARNING))


def as_json(cells: Sequence[Attacked], grid: Grid, about: dict[str, Any]) -> str:
    """Return everything but the pictures as JSON."""
    value = about | {
        "kind": "audit",
        "grid": {k: v for k, v in asdict(grid).items() if k not in ("base", "sizes", "noises")}
        | {"confidence": grid.confidence},
        "findings": [finding._asdict() for finding in findings(cells, grid)],
        "cells": [_plain(cell) for cell in cells],
    }
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _paragraphs(finding: Finding) -> list[Any]:
    from rich.text import Text

    return [
        Text(finding.title, style="bold"),
        Text(finding.leaked),
        Text(f"{finding.sure} {finding.stops}\n"),
    ]


def _plain(cell: Attacked) -> dict[str, Any]:
    """Return the numbers of a cell for JSON; an infinite ε becomes None."""
    guarantee = cell.guarantee
    return {
        "m": cell.m,
        "group": cell.group,
        "exchange": {k: v for k, v in asdict(cell.how).items() if v is not None},
        "epsilon": guarantee.epsilon if math.isfinite(guarantee.epsilon) else None,
        "guarantee": str(guarantee),
        "membership": {
            name: getattr(cell, name)._asdict() for name in ("server", "client", "together")
        },
        "neighbours": cell.neighbours.rates._asdict() | {"epsilon": cell.neighbours.epsilon},
        "labels": cell.labels._asdict(),
        "linking": {"alone": cell.linking._asdict(), "together": cell.linking_together._asdict()},
        "reconstruction": {
            k: v._asdict() if hasattr(v, "_asdict") else v
            for k, v in cell.reconstruction._asdict().items()
        },
        "differencing": [d._asdict() for d in cell.differencing],
    }
