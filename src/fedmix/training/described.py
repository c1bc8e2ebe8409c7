"""How what trains shows itself: in a line, and in a notebook as a table."""

from dataclasses import is_dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedmix.core.reprs import as_html, call_of, counted, in_words, megabytes
from fedmix.objectives.base import Function, titled

if TYPE_CHECKING:
    from fedmix.training.rounds import Round, Rounds


def of_round(done: "Round") -> str:
    """Return a finished round in a line."""
    found = {"local_loss": done.local_loss} | (done.metrics or {}) | dict(done.notes)
    return (
        f"Round({done.round}: {in_words(found)}, {megabytes(done.traffic.up, done.traffic.down)})"
    )


def in_a_line(federation: "Rounds") -> str:
    """Return what trains in a line, with its last score."""
    score = "".join(f", {in_words({name: value})}" for name, value in _last(federation)[:1])
    return (
        f"{type(federation).__name__}({federation.data.name}, {len(federation.sizes())} clients, "
        f"{titled(federation.objective)}, {counted(federation.round, 'round')} done{score})"
    )


def as_table(federation: "Rounds") -> str:
    """Return what trains as an HTML table."""
    model, parameters = federation.model, sum(p.numel() for p in federation.params.values())
    sent = megabytes(federation.traffic.up, federation.traffic.down)
    rows: list[tuple[str, object]] = [
        ("data", federation.data),
        ("model", f"{type(model.module).__name__}, {parameters:,} parameters"),
        ("objective", _short(federation.objective)),
        ("training", _short(federation.training)),
        *([("exchange", federation.exchange.how)] if federation.exchange else []),
        ("server", _short(federation.server)),
        ("rounds done", federation.round),
        ("sent", sent),
    ]
    last = [(name, in_words({name: value}).removeprefix(name)) for name, value in _last(federation)]
    return as_html([*rows, *last])


def _short(value: object) -> object:
    return call_of(value) if is_dataclass(value) and not isinstance(value, Function) else value


def _last(federation: "Rounds") -> list[tuple[str, float]]:
    """Return score and loss of the last test, if there was one."""
    history, score = federation.history, federation.model.loss.score_name
    if score not in history:
        return []
    last = np.flatnonzero(~np.isnan(history[score]))[-1:]
    return [(name, float(history[name][i])) for name in (score, "loss") for i in last]
