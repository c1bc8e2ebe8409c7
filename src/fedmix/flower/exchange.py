"""The exchange of means with nodes: whom the server asks, what they send, and what it counts."""

import logging
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field

import numpy as np
from flwr.app import RecordDict

from fedmix.core.errors import FedmixError
from fedmix.core.types import Array
from fedmix.exchange import MeanExchange, Means, Releases
from fedmix.flower import wire
from fedmix.flower.ledger import Ledger
from fedmix.flower.messages import content_of
from fedmix.flower.roster import Roster
from fedmix.flower.wire import Presence, Rejected

log = logging.getLogger("fedmix.flower")


@dataclass
class Asked(MeanExchange):
    """A mean exchange that knows its clients only by their messages.

    Attributes:
        ledger: Counts releases; failed rounds do not undo its counts.
        settled: For each client, the digest of the data for which it was last asked for means; 0 if
            it never was.
    """

    ledger: Ledger = field(kw_only=True)
    settled: Array = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.settled = np.zeros(self.clients, np.int64)
        self.recall()

    def recall(self) -> None:
        """Restore the ledger's counts: releases of failed rounds and stopped runs count."""
        self.count_at_least(self.ledger.sent, self.ledger.smallest)

    def settle(self, digests: Mapping[int, int]) -> None:
        """Record the digests of the data that clients were asked about; 0: ask again."""
        self.settled = self.settled.copy()
        self.settled[list(digests)] = list(digests.values())

    def has_sent(self, client: int) -> bool:
        """Whether the exchange holds means of a client."""
        if self.releases is None:
            return False
        return bool(self.sent[client]) if self.how.secure else client in self.releases.owner

    def welcome(self, client: int) -> None:
        """Register a client that joined: it holds no pool.

        If it has sent no means, it is asked for them again, since its policy may have changed.
        """
        self.lost([client])
        if not self.has_sent(client):
            self.settle({client: 0})

    def notice(self, presence: Presence) -> None:
        """Check whether a client's data changed since it was last asked for means.

        With `secure` nobody knows how many samples its mean in a sum had; it is assumed that they
        were as few as it has now.
        """
        client = presence.client
        if self.how.secure and self.sent[client]:
            self.count_at_least(self.sent, max(presence.samples, self.how.cutoff))
            if self.smallest < self.ledger.smallest:
                self.ledger.write(self)
        if self.settled[client] not in (0, presence.digest) and client not in self.pending:
            log.info("the data of client %s changed", client)
            self.changed([client])

    def due(self, here: Iterable[int], *, every_round: bool) -> list[int]:
        """Return the clients among `here` that have to send means now; all if `every_round`."""
        waits = len(self.pending) / self.clients < self.how.wait
        again = frozenset() if waits or self.how.secure else self.pending
        return [k for k in sorted(here) if every_round or not self.settled[k] or k in again]

    def expect(self, samples: Mapping[int, int]) -> int:
        """Write to the ledger that all these clients release means, before they are asked.

        Args:
            samples: Number of samples by client.

        Returns:
            The fewest samples in one of the means.
        """
        smallest = self.how.smallest_group(np.array(list(samples.values())))
        everyone = copy(self)
        everyone.count(np.array(list(samples)), smallest)
        self.ledger.write(everyone)
        return smallest


def collect_means(
    exchange: Asked,
    roster: Roster,
    questions: Mapping[int, RecordDict],
    seconds: float,
    like: Means,
    *,
    shares: bool,
) -> tuple[list[Releases], list[int], dict[int, FedmixError]]:
    """Ask clients for their means, and read the replies.

    Args:
        exchange: The exchange; its counts are updated and written to the ledger.
        roster: The clients that are online.
        questions: The message for each client to ask.
        seconds: How long to wait for replies.
        like: Example of means; those sent must have its shapes, and values of about its size.
        shares: Whether labels must be shares of classes.

    Returns:
        The means; the clients whose earlier means they replace; the error of each bad reply, by
            client.
    """
    limits = [
        10 * max(1.0, float(part.abs().max())) + 10 * s
        for part, s in zip(like, exchange.how.noises, strict=True)
    ]
    agreed = exchange.expect({k: roster.presence[k].samples for k in questions})
    replies = roster.ask("query.means", questions, seconds)
    sent, done, wrong = list[Releases](), list[int](), dict[int, FedmixError]()
    for k in questions:
        reply = replies.get(k)
        content = content_of(reply, f"client {k}")
        if reply is None or reply.has_error():
            exchange.count(np.array([k]), agreed)  # means may have left the client and been lost
            continue  # it is asked again in the next round
        before = exchange.sent[k]
        exchange.settle({k: roster.presence[k].digest})
        exchange.pending -= {k}
        try:
            if content is not None and (m := _group_size(exchange, roster, k, content)):
                exchange.count(np.array([k]), m)  # means have left the client, valid or not
                means = wire.read_means(
                    content, exchange.how, roster.presence[k].samples, like, limits, labels=shares
                )
                sent.append(Releases(np.full(len(means.x), k), *means))
            done.append(k)
        except FedmixError as error:
            if exchange.sent[k] == before:
                exchange.count(np.array([k]), agreed)
            wrong[k] = error
    exchange.ledger.write(exchange)
    return sent, done, wrong


def _group_size(exchange: Asked, roster: Roster, client: int, content: RecordDict) -> int:
    """Update a client's presence from its reply; return its samples per mean (0: no means)."""
    presence = Presence.read(content, roster.clients)
    if presence.client != client:
        raise Rejected(f"it says that it is client {presence.client} now")
    exchange.settle({client: presence.digest})
    roster.presence[client] = presence
    m = wire.group_size(content, presence.samples)
    if not m and any(content.array_records.values()):
        raise Rejected("it sends means, and says that they are of no samples")
    if not m:
        log.info("client %s is below the cut-off and sends no means", client)
    return m
