"""The server's part of the exchange on Flower: whom it asks for means, and who gets the pool."""

import logging
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedmix.core.errors import BadInput, FedmixError
from fedmix.core.rng import stream
from fedmix.core.types import Array
from fedmix.data.federated import FederatedData
from fedmix.exchange import MeanExchange, Means, Releases, Traffic
from fedmix.flower import wire
from fedmix.flower.ledger import Ledger
from fedmix.flower.messages import content_of
from fedmix.flower.roster import Roster, TooFew
from fedmix.flower.wire import Presence, Rejected

LOOKED_AT = 256  # samples of the server that show how large values are
log = logging.getLogger("fedmix.flower")


@dataclass
class Asked(MeanExchange):
    """A mean exchange that knows its clients only by their messages.

    Attributes:
        ledger: Counts releases; failed rounds do not undo its counts.
        roster: The clients that are online.
        data: Samples of the server, like which the clients' are.
        seconds: How long to wait for replies.
        settled: For each client, the digest of the data for which it was last asked for means; 0 if
            it never was.
    """

    ledger: Ledger = field(kw_only=True)
    roster: Roster = field(kw_only=True)
    data: FederatedData = field(kw_only=True)
    seconds: float = field(kw_only=True)
    settled: Array = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.how.secure:
            from fedmix.flower import secagg_server  # noqa: F401 - it may refuse this Flower
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

    def welcome(self, clients: Iterable[int]) -> None:
        """Register clients that joined: they hold no pool.

        Who has sent no means is asked for them again, since its policy may have changed.
        """
        for client in clients:
            self.lost([client])
            if not self.has_sent(client):
                self.settle({client: 0})
            self.notice(self.roster.presence[client])

    def notice(self, presence: Presence) -> None:
        """Keep what a client says; check whether its data changed since it was asked for means.

        With `secure` nobody knows how many samples its mean in a sum had; it is assumed that they
        were as few as it has now.
        """
        client = presence.client
        self.roster.notice(presence)
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

    def gather(
        self,
        round_: int,
        attempt: int,
        encode: Callable[[Array], Tensor],
        weights: ArrayRecord | None = None,
    ) -> Traffic:
        """Ask clients for the means that are due, and make a pool of them.

        Args:
            round_: The round, from 0.
            attempt: Which attempt at this round it is, for the groups of secure sums.
            encode: Returns what is averaged of samples. Means must have the shapes of the server's
                own, so encoded, and values of about their size.
            weights: With weights of an encoder, all clients send means of hidden states.

        Returns:
            The bytes that were sent.

        Raises:
            TooFew: There are not enough means for a pool.
        """
        every_round, before = weights is not None, copy(self)
        sample = Means(encode(self.data.x[:LOOKED_AT]), self.data.labels(self.data.y[:LOOKED_AT]))
        due = self.due(self.roster.node, every_round=every_round)
        sent, done, traffic = list[Releases](), list[int](), Traffic()
        if due and self.how.secure:
            from fedmix.flower.secagg_server import collect_sums

            rng = stream(self.seed, "sums", round_, attempt)
            sent, done, traffic = collect_sums(self, due, sample, rng)
        elif due:
            sent, done = self._ask(round_, due, sample, weights)
        if every_round:
            done = list(range(self.clients))  # states of an older encoder are of no use
        kept = [] if self.releases is None else [self.releases.without(np.array(done, np.int64))]
        count = sum(len(part.owner) for part in [*kept, *sent])
        if count < (1 if self.how.secure else self.how.average):
            if not self.how.secure:
                # so that all clients are asked again
                self.settled, self.pending = before.settled, before.pending
            raise TooFew(
                f"{count} means have been sent, and exchange.average={self.how.average} needs as "
                "many; lower it"
                if count
                else "no client has sent means, without which this objective cannot train"
            )
        if sent or any(map(self.has_sent, done)):
            traffic += self.take(np.array(done), sent, self.data)
            said = "round %s: version %s of the pool has %s entries"
            log.info(said, round_ + 1, self.version, len(self.pool or ()))
        return traffic

    def _ask(
        self, round_: int, due: list[int], sample: Means, weights: ArrayRecord | None
    ) -> tuple[list[Releases], list[int]]:
        """Ask clients for their means, and read the replies.

        Returns:
            The means, and the clients whose earlier means they replace.
        """
        # A question says which means and when; how to make them is in the app, which both have.
        about = {k: ConfigRecord({"round": round_, "epoch": int(self.epoch[k])}) for k in due}
        more = {} if weights is None else {"weights": weights}
        questions = {k: RecordDict({"about": about[k], **more}) for k in due}
        agreed = self.expect({k: self.roster.presence[k].samples for k in due})
        replies = self.roster.ask("query.means", questions, self.seconds)
        sent, done = list[Releases](), list[int]()
        for k in due:
            reply = replies.get(k)
            content = content_of(reply, f"client {k}")
            if reply is None or reply.has_error():
                self.count(np.array([k]), agreed)  # means may have left the client and been lost
                continue  # it is asked again in the next round
            before = self.sent[k]
            self.settle({k: self.roster.presence[k].digest})
            self.pending -= {k}
            try:
                if content is not None and (m := self._group_size(k, content)):
                    self.count(np.array([k]), m)  # means have left the client, valid or not
                    means = self._read(k, content, sample)
                    sent.append(Releases(np.full(len(means.x), k), *means))
                done.append(k)
            except FedmixError as error:
                if self.sent[k] == before:
                    self.count(np.array([k]), agreed)
                self.roster.reject(round_, k, error)
        self.ledger.write(self)
        return sent, done

    def _group_size(self, client: int, content: RecordDict) -> int:
        """Keep what a client's reply says of it; return its samples per mean (0: no means)."""
        presence = Presence.read(content, self.clients)
        if presence.client != client:
            raise Rejected(f"it says that it is client {presence.client} now")
        self.settle({client: presence.digest})
        self.roster.notice(presence)
        m = wire.group_size(content, presence.samples)
        if not m and any(content.array_records.values()):
            raise Rejected("it sends means, and says that they are of no samples")
        if not m:
            log.info("client %s is below the cut-off and sends no means", client)
        return m

    def _read(self, client: int, content: RecordDict, sample: Means) -> Means:
        """Read a client's means; raise Rejected if they are not what was agreed."""
        limits = [
            10 * max(1.0, float(part.abs().max())) + 10 * s
            for part, s in zip(sample, self.how.noises, strict=True)
        ]
        # clipped labels are no shares, and may have noise
        shares = self.data.classes is not None and self.how.clip is None
        n = self.roster.presence[client].samples
        return wire.read_means(content, self.how, n, sample, limits, labels=shares)

    def hand_out(self, round_: int, clients: Iterable[int]) -> tuple[list[int], Traffic]:
        """Send the pool to those clients that lack it.

        Returns:
            The clients that hold it then, and the bytes that were sent.
        """
        assert self.pool is not None
        clients, contents = list(clients), dict[int, RecordDict]()
        for k in clients:
            if self.holds[k] == self.version:
                continue
            try:
                mine = torch.from_numpy(self.entries_for(k))
            except BadInput as error:  # every entry of the pool contains this client's means
                self.roster.reject(round_, k, error)
                continue
            pool: dict[str, Tensor] = {"x": self.pool.x, "y": self.pool.y}
            more = {"entries": mine} if self.how.exclude_own else {}
            about = ConfigRecord({"version": self.version})
            contents[k] = RecordDict({"about": about, "pool": wire.pack(pool | more)})
        traffic = self.deliver(contents)
        replies = self.roster.ask("query.pool", contents, self.seconds) if contents else {}
        for k in contents:
            content = content_of(replies.get(k), f"client {k}")
            try:
                if content is None or Presence.read(content, self.clients).holds != self.version:
                    self.lost([k])
            except Rejected as error:
                self.lost([k])
                self.roster.reject(round_, k, error)
        return [k for k in clients if self.holds[k] == self.version], traffic

    def state(self) -> dict[str, Tensor]:
        """Return everything that later rounds depend on, with the digests of the clients' data."""
        return super().state() | {"settled": torch.from_numpy(self.settled)}

    def restore(self, saved: dict[str, Tensor], data: FederatedData) -> None:
        """Load what `state` returned.

        Clients keep nothing of a run that ended, so they get the pool again, but send no means
        again. Raises BadInput if the state is damaged, or of another exchange.
        """
        super().restore(saved, data)
        settled = saved.get("settled")
        if settled is None or settled.dtype != torch.int64 or settled.shape != (self.clients,):
            raise BadInput("this state is damaged: its exchange has no fitting digests; start anew")
        self.settled = settled.numpy()
        self.lost(range(self.clients))
        self.recall()
        self.welcome(self.roster.node)
