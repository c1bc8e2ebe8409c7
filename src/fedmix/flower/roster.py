"""The clients that are online, and their nodes."""

import logging
import time
from collections.abc import Mapping

from flwr.app import Message, RecordDict

from fedmix.core.errors import FedmixError
from fedmix.flower.messages import POLL_SECONDS, Post, answer_of
from fedmix.flower.terms import Terms
from fedmix.flower.wire import Presence, Rejected

log = logging.getLogger("fedmix.flower")


class TooFew(FedmixError):
    """Too few clients are online, or too few sent a valid reply."""


class Roster:
    """The clients that are online, by number.

    A node whose answer to the roll call is invalid or late is asked again at the next call,
    `attempts` times in all, or until it has been offline.

    Attributes:
        node: The id of each client's node.
        presence: What each client last said about itself.
        flower: The version of Flower of each client that ever came.
        rejected: How many replies were no good.

    Args:
        post: Sends the messages.
        terms: What a client must have in common with the server.
        clients: Number of clients of the federation.
        attempts: How often a node is asked who it is.
        seconds: How long to wait for clients to join, and for an answer to the roll call.
    """

    def __init__(
        self, post: Post, terms: Terms, clients: int, attempts: int, seconds: float
    ) -> None:
        self.post, self.terms, self.clients = post, terms, clients
        self.attempts, self.seconds = attempts, seconds
        self.node: dict[int, int] = {}
        self.presence: dict[int, Presence] = {}
        self.flower: dict[int, str] = {}
        self.failures: dict[int, int] = {}
        self.why_out = ""
        self.rejected = 0

    def __len__(self) -> int:
        return len(self.node)

    @property
    def training(self) -> set[int]:
        """The clients that train, which are not those whose policy lets no weights out."""
        return {client for client, said in self.presence.items() if said.trains}

    def notice(self, presence: Presence) -> None:
        """Keep what a client says of itself; log if it trains no more."""
        before = self.presence.get(presence.client)
        self.presence[presence.client] = presence
        if not presence.trains and (before is None or before.trains):
            log.warning(
                "client %s is not asked to train: its policy lets no weights out", presence.client
            )

    def reject(self, round_: int, client: int, error: Exception) -> None:
        """Count a reply that is no good, and log why."""
        self.rejected += 1
        log.warning("round %s: a reply of client %s is rejected: %s", round_ + 1, client, error)

    def ask(
        self, kind: str, contents: Mapping[int, RecordDict], seconds: float
    ) -> dict[int, Message]:
        """Send each client its message; return the replies that come in time, by client."""
        replies = self.post.ask(
            kind, {self.node[k]: content for k, content in contents.items()}, seconds
        )
        return {k: replies[self.node[k]] for k in contents if self.node[k] in replies}

    def gather(self, enough: int) -> list[int]:
        """Wait until `enough` clients have joined, and return them.

        Raises:
            TooFew: They did not join in time.
        """
        deadline = time.monotonic() + self.seconds
        came: list[int] = []
        while len(self) < enough:
            if time.monotonic() > deadline:
                raise TooFew(
                    f"{len(self)} of {enough} clients came within {self.seconds:g} s; start the "
                    f"others, or lower min-clients{self.why_out}"
                )
            if len(self.post.online()) >= enough:
                came += self.call()
            if len(self) < enough:
                time.sleep(POLL_SECONDS)
        return came

    def call(self) -> list[int]:
        """Remove clients whose nodes are gone, ask new nodes who they are, return new clients."""
        online = self.post.online()
        for client in [k for k, node in self.node.items() if node not in online]:
            log.warning("client %s is gone", client)
            del self.node[client], self.presence[client]
        # a node that went offline may work after its restart
        self.failures = {node: count for node, count in self.failures.items() if node in online}
        new = sorted(
            node
            for node in online - set(self.node.values())
            if self.failures.get(node, 0) < self.attempts
        )
        replies = self.post.ask("query.join", {node: RecordDict() for node in new}, self.seconds)
        came = []
        for node in new:
            answer = answer_of(replies.get(node))
            try:
                if isinstance(answer, str):
                    raise Rejected(f"it {answer}")
                presence, theirs = Presence.read(answer, self.clients), Terms.read(answer)
                self.terms.check(theirs)
            except Rejected as error:
                self.failures[node] = self.failures.get(node, 0) + 1
                log.warning("node %s is not let in: %s", node, error)
                self.why_out = f" (the last node was not let in: {error})"
                continue
            client = presence.client
            if client in self.node:  # perhaps restarted, while its old node still counts as online
                said = "node %s says that it is client %s, which node %s is; it has to wait"
                log.warning(said, node, client, self.node[client])
                continue
            self.node[client], self.flower[client] = node, theirs.flower
            log.info(
                "client %s is there, as node %s, with %s samples and Flower %s",
                client,
                node,
                presence.samples,
                theirs.flower,
            )
            self.notice(presence)
            came.append(client)
        return came
