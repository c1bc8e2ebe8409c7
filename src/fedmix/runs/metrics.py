"""metrics.jsonl: one line of JSON for every round."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedmix.core.errors import BadInput
from fedmix.core.files import parse_json
from fedmix.runs.folder import read
from fedmix.training.rounds import Round, Rounds

NEEDED = {"round", "seconds", "bytes_up", "bytes_down"}  # a summary needs these


def metrics_of(done: Round, federation: Rounds, seconds: float) -> dict[str, Any]:
    """Return the line of the round that was just done.

    Scores that are NaN or infinite become None.

    Args:
        done: The round.
        federation: What trains, for its traffic so far.
        seconds: How long the run has taken so far.
    """
    total = federation.traffic
    sent = {
        "bytes_up": total.up,
        "bytes_down": total.down,
        **{k: v for k, v in asdict(total).items() if k != "pool"},
    }
    scores = {
        name: value if math.isfinite(value) else None
        for name, value in (done.metrics or {}).items()
    }
    return {
        "round": done.round,
        **scores,
        "local_loss": done.local_loss,
        "seconds": round(seconds, 3),
        **sent,
        **done.notes,
    }


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file; ValueError for one that this process neither wrote nor cut."""
    return [parse_json(line) for line in path.read_bytes().splitlines()]


def cut(path: Path, rounds: int) -> bytes:
    """Return the lines of the first `rounds` rounds, without those written after the checkpoint.

    An incomplete last line is dropped as well.

    Raises:
        BadInput: A round is missing.
    """
    lines = read(path).split(b"\n")[:rounds] if path.is_file() else []
    if [_round_of(line) for line in lines] != list(range(1, rounds + 1)):
        raise BadInput(
            f"{path} lacks some of the {rounds} rounds before the checkpoint; delete "
            "checkpoint.safetensors to start anew"
        )
    return b"".join(line + b"\n" for line in lines)


def _round_of(line: bytes) -> Any:
    """Return the round of a line that has all that a summary needs; None for other lines."""
    try:
        said = parse_json(line)
    except ValueError:
        return None
    if not isinstance(said, dict) or not said.keys() >= NEEDED:
        return None
    numbers = all(value is None or type(value) in (int, float) for value in said.values())
    return said["round"] if numbers else None
