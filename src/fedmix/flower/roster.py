"""Which clients are there, and as which nodes."""

import logging
import time
from collections.abc import Mapping

from flwr.app import Message, RecordDict

from fedmix.core.errors import FedmixError
from fedmix.flower.messages import POLL_SECONDS, Post, content_of
from fedmix.flower.wire import Presence, Rejected

log = logging.getLogger("fedmix.flower")


class TooFew(FedmixError):
    """Not enough clients were there, or replied well."""


class Roster:
    """The clients that are there, by number: `node` and what they last said of themselves,
    `presence`.

    A node whose answer to the roll call is no good, or takes more than `seconds`, is asked again at
    the next, `attempts` times in all, or until it has been away.
    """

    def __init__(self, post: Post, clients: int, attempts: int, seconds: float) -> None:
        self.post, self.clients, self.attempts, self.seconds = post, clients, attempts, seconds
        self.node: dict[int, int] = {}
        self.presence: dict[int, Presence] = {}
        self.failures: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.node)

    def __contains__(self, client: int) -> bool:
        return client in self.node

    def ask(
        self, kind: str, contents: Mapping[int, RecordDict], seconds: float
    ) -> dict[int, Message]:
        """Send each of these clients its message; the replies that come in time."""
        replies = self.post.ask(
            kind, {self.node[k]: content for k, content in contents.items()}, seconds
        )
        return {k: replies[self.node[k]] for k in contents if self.node[k] in replies}

    def gather(self, enough: int) -> list[int]:
        """Wait until `enough` clients are there."""
        deadline = time.monotonic() + self.seconds
        came: list[int] = []
        while len(self) < enough:
            if time.monotonic() > deadline:
                raise TooFew(
                    f"{len(self)} of {enough} clients came within {self.seconds:g} s; start the "
                    "others, or lower min-clients"
                )
            if len(self.post.online()) >= enough:
                came += self.call()
            if len(self) < enough:
                time.sleep(POLL_SECONDS)
        return came

    def call(self) -> list[int]:
        """Strike off clients whose nodes are gone, and ask nodes that are new who they are; the
        clients that came.
        """
        online = self.post.online()
        for client in [k for k, node in self.node.items() if node not in online]:
            log.warning("client %s is gone", client)
            del self.node[client], self.presence[client]
        self.failures = {
            node: count for node, count in self.failures.items() if node in online
        }  # restarted, it may be mended
        new = sorted(
            node
            for node in online - set(self.node.values())
            if self.failures.get(node, 0) < self.attempts
        )
        replies = self.post.ask("query.join", {node: RecordDict() for node in new}, self.seconds)
        came = []
        for node in new:
            content = content_of(replies.get(node), f"node {node}")
            try:
                if content is None:
                    raise Rejected("it did not say who it is")
                presence = Presence.read(content, self.clients)
            except Rejected as error:
                self.failures[node] = self.failures.get(node, 0) + 1
                log.warning("node %s is not let in: %s", node, error)
                continue
            client = presence.client
            if (
                client in self
                # it may have been killed and be back, while its old node is still believed to be
                # there
            ):
                said = "node %s says that it is client %s, which node %s is; it has to wait"
                log.warning(said, node, client, self.node[client])
                continue
            self.node[client], self.presence[client] = node, presence
            log.info(
                "client %s is there, as node %s, with %s samples", client, node, presence.samples
            )
            came.append(client)
        return came
