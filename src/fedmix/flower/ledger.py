"""How often clients have let means out, on disk: what has left a client stays counted, whatever
became of the round.
"""

import json
from pathlib import Path

import numpy as np

from fedmix.core.errors import BadInput
from fedmix.core.files import parse_json, read_within, write_whole
from fedmix.core.types import Array
from fedmix.exchange import MeanExchange

LARGEST = 16 << 20


class Ledger:
    """Each client's releases, `sent`, and the fewest samples in a mean, `smallest`, as a
    MeanExchange counts them.

    A server writes them down before it asks, as if everyone let means out, and again when it knows
    who did: killed in between, it counts too many rather than too few. Without a `path` they last
    as long as the process.
    """

    def __init__(self, clients: int, path: Path | None = None) -> None:
        self.path, self.sent, self.smallest = path, np.zeros(clients, np.int64), 0
        if path is not None and (path.exists() or path.is_symlink()):
            self.sent, self.smallest = _read(path, clients)

    def write(self, exchange: MeanExchange) -> None:
        """Put an exchange's counts in the place of those that are there."""
        self.sent, self.smallest = exchange.sent, exchange.smallest
        if self.path is not None:
            write_whole(
                self.path,
                json.dumps({"sent": self.sent.tolist(), "smallest": self.smallest}).encode()
                + b"\n",
            )


def _read(path: Path, clients: int) -> tuple[Array, int]:
    advice = "it counts what has left the clients: restore it, or use another folder for runs"
    content = read_within(path, LARGEST, advice, links=False)
    try:
        said = parse_json(content)
        sent, smallest = list(said["sent"]), said["smallest"]
    except (ValueError, TypeError, KeyError):
        raise BadInput(f"{path} is damaged; {advice}") from None
    if not all(type(count) is int and 0 <= count < 2**62 for count in (*sent, smallest)):
        raise BadInput(f"{path} is damaged; {advice}")
    if len(sent) != clients:
        raise BadInput(f"{path} is of {len(sent)} clients, and clients={clients}; {advice}")
    return np.array(sent, np.int64), smallest
