"""What has left clients, counted on disk: by the server, and by each client for itself.

A release counts, whatever becomes of its round. Counts are written before anything leaves: a
process that is killed in between has counted too many rather than too few.
"""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedmix.core.errors import BadInput
from fedmix.core.files import parse_json, read_within, refuse_link, write_whole
from fedmix.exchange import MeanExchange

LARGEST = 16 << 20
COUNTS = ("releases", "means", "smallest", "rounds", "bytes")


class Ledger:
    """The server's counts of releases, as a MeanExchange keeps them, in a file.

    `sent` is the number of releases of each client, `smallest` the fewest samples in a mean.

    Args:
        clients: Number of clients.
        path: The file, read if it exists; without one, the counts last as long as the process.

    Raises:
        BadInput: The file is damaged or has another number of clients.
    """

    def __init__(self, clients: int, path: Path | None = None) -> None:
        self.path, self.sent, self.smallest = path, np.zeros(clients, np.int64), 0
        if path is None or not _there(path):
            return
        advice = "it counts what has left the clients: restore it, or use another folder for runs"
        said = _read(path, advice)
        sent = said.get("sent")
        if set(said) != {"sent", "smallest"} or not isinstance(sent, list):
            raise BadInput(f"{path} is damaged; {advice}")
        if not all(map(_is_count, (*sent, said["smallest"]))):
            raise BadInput(f"{path} is damaged; {advice}")
        if len(sent) != clients:
            raise BadInput(f"{path} is of {len(sent)} clients, and clients={clients}; {advice}")
        self.sent, self.smallest = np.array(sent, np.int64), said["smallest"]

    def write(self, exchange: MeanExchange) -> None:
        """Replace the counts by those of an exchange."""
        self.sent, self.smallest = exchange.sent, exchange.smallest
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _write(self.path, {"sent": self.sent.tolist(), "smallest": self.smallest})


class Account:
    """A client's own counts of what has left it, in a file that is kept from run to run.

    Attributes:
        releases: How often it released means.
        means: How many means those were.
        smallest: The fewest samples in one of them; 0 for none.
        rounds: How often it sent weights.
        bytes: The bytes of these weights.

    Args:
        path: The file, read if it exists; without one, the counts last as long as the object.

    Raises:
        BadInput: The file is damaged.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.releases = self.means = self.smallest = self.rounds = self.bytes = 0
        self._load()

    @contextmanager
    def writing(self) -> Iterator["Account"]:
        """Lock the file, read it again, and write the counts when the block ends without an error.

        Raises:
            BadInput: The file is damaged, or cannot be written.
        """
        if self.path is None:
            yield self
            return
        beside = self.path.with_name(f".{self.path.name}.lock")
        try:
            refuse_link(beside)
            with beside.open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # waits: Flower may run two messages at once
                self._load()
                yield self
                _write(self.path, {name: getattr(self, name) for name in COUNTS})
        except OSError as error:
            raise BadInput(
                f"the ledger {self.path} cannot be written ({error.strerror}); make it writable"
            ) from error

    def released(self, means: int, group: int) -> None:
        """Count a release of so many means, of so many samples each."""
        self.releases, self.means = self.releases + 1, self.means + means
        self.smallest = min(filter(None, (self.smallest, group)))

    def trained(self, sent: int) -> None:
        """Count weights of so many bytes."""
        self.rounds, self.bytes = self.rounds + 1, self.bytes + sent

    def _load(self) -> None:
        if self.path is None or not _there(self.path):
            return
        advice = "it counts what has left this client: restore it, or name another file"
        said = _read(self.path, advice)
        if set(said) != set(COUNTS) or not all(map(_is_count, said.values())):
            raise BadInput(f"{self.path} is damaged; {advice}")
        vars(self).update(said)


def _there(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def _read(path: Path, advice: str) -> dict[str, Any]:
    try:
        return dict(parse_json(read_within(path, LARGEST, advice, links=False)))
    except (ValueError, TypeError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{path} is damaged; {advice}") from None


def _write(path: Path, counts: dict[str, Any]) -> None:
    write_whole(path, json.dumps(counts).encode() + b"\n")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**62
