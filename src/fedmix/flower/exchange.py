"""The exchange with nodes: which means clients were asked for, those that they send in the clear,
and what has left them.
"""

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
    """An exchange that knows of its clients what their messages say.

    `settled` is, for each client, the digest of the data for which it was last asked for means; 0
    if it never was. What the `ledger` counts is not undone with a round.
    """

    ledger: Ledger = field(kw_only=True)
    settled: Array = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.settled = np.zeros(self.clients, np.int64)
        self.recall()

    def recall(self) -> None:
        """What has left clients stays counted, in a round that failed and in a run that was
        stopped.
        """
        self.count_at_least(self.ledger.sent, self.ledger.smallest)

    def settle(self, digests: Mapping[int, int]) -> None:
        """Take note of the data for which these clients have been asked; 0 has them asked again."""
        self.settled = self.settled.copy()
        self.settled[list(digests)] = list(digests.values())

    def has_sent(self, client: int) -> bool:
        """Whether means of a client are there."""
        if self.releases is None:
            return False
        return bool(self.sent[client]) if self.how.secure else client in self.releases.owner

    def welcome(self, client: int) -> None:
        """A client that came holds no pool yet; one that has sent nothing is asked for means, for
        its policy may be another.
        """
        self.lost([client])
        if not self.has_sent(client):
            self.settle({client: 0})

    def notice(self, presence: Presence) -> None:
        """A client's data may have changed since it was last asked for means.

        With `secure` nobody knows of how many samples it was in a sum: of as few as it has now, it
        is assumed.
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
        """Those of the clients that are here that are to send means now."""
        waits = len(self.pending) / self.clients < self.how.wait
        again = frozenset() if waits or self.how.secure else self.pending
        return [k for k in sorted(here) if every_round or not self.settled[k] or k in again]

    def expect(self, samples: Mapping[int, int]) -> int:
        """Write down that all of these clients, with so many samples, release means; the fewest
        samples in one of them.
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
    """What the clients that are asked send, for whom it takes the place of what they sent before,
    and whose reply is no good.

    Means have to be `like` these in shape, and about as large; with `shares`, labels are shares of
    classes.
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
            exchange.count(np.array([k]), agreed)  # they may have left the client, and got lost
            continue  # it is asked again in the next round
        before = exchange.sent[k]
        exchange.settle({k: roster.presence[k].digest})
        exchange.pending -= {k}
        try:
            if content is not None and (m := _group_size(exchange, roster, k, content)):
                exchange.count(np.array([k]), m)  # it has left the client, good or not
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
    """Of how many samples the means in a reply are, by what the client says of itself now; 0 if it
    sends none.
    """
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
