"""The counts of clients' releases on disk: a release counts, whatever became of its round."""

import json
from pathlib import Path

import numpy as np

from fedmix.core.errors import BadInput
from fedmix.core.files import parse_json, read_within, write_whole
from fedmix.core.types import Array
from fedmix.exchange import MeanExchange

LARGEST = 16 << 20


class Ledger:
    """Counts of releases, as a MeanExchange keeps them, in a file.

    A server writes them before it asks, as if all clients released means, and again when it knows
    who did: killed in between, it counts too many rather than too few. `sent` is the number of
    releases of each client, `smallest` the fewest samples in a mean.

    Args:
        clients: Number of clients.
        path: The file, read if it exists; without one, the counts last as long as the process.

    Raises:
        BadInput: The file is damaged or has another number of clients.
    """

    def __init__(self, clients: int, path: Path | None = None) -> None:
        self.path, self.sent, self.smallest = path, np.zeros(clients, np.int64), 0
        if path is not None and (path.exists() or path.is_symlink()):
            self.sent, self.smallest = _read(path, clients)

    def write(self, exchange: MeanExchange) -> None:
        """Replace the counts by those of an exchange."""
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
