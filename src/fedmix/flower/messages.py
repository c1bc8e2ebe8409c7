"""Messages to nodes and their replies: sent together, counted, and with a time limit."""

import logging
import time
from collections.abc import Mapping

from flwr.app import Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from fedmix.flower import wire
from fedmix.flower.refusals import refused

POLL_SECONDS = 0.5
ERRORS = {  # by Flower's code; the text beside the code is the node's own and is not trusted
    ErrorCode.LOAD_CLIENT_APP_EXCEPTION: "its app could not be loaded; its own log says why",
    ErrorCode.CLIENT_APP_RAISED_EXCEPTION: "its app failed; its own log says why",
    ErrorCode.MESSAGE_UNAVAILABLE: "the message did not reach it in time",
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "its reply got lost",
    ErrorCode.NODE_UNAVAILABLE: "its node is gone",
    ErrorCode.MOD_FAILED_PRECONDITION: "a mod of its app cannot take this message",
    ErrorCode.INVALID_FAB: "it does not trust this app",
    ErrorCode.CLIENT_APP_CRASHED: "its app ended early; its own log says why",
}
log = logging.getLogger("fedmix.flower")


class Post:
    """Sends messages to nodes, waits for replies, and counts the bytes in both directions.

    Args:
        grid: Flower's grid.
        at_once: How many nodes may work at a time; 0 for all.
    """

    def __init__(self, grid: Grid, at_once: int = 0) -> None:
        self.grid, self.at_once = grid, at_once
        self.up = self.down = 0

    def online(self) -> set[int]:
        """Return the ids of the nodes that are connected to the SuperLink."""
        return set(self.grid.get_node_ids())

    def ask(
        self, kind: str, contents: Mapping[int, RecordDict], timeout: float
    ) -> dict[int, Message]:
        """Send each node its message, and collect replies for at most `timeout` seconds.

        Args:
            kind: Flower's type of the messages.
            contents: Content of each message, by node id.
            timeout: Seconds to wait for all replies together.

        Returns:
            The replies that came in time, by the id of the node that was asked.
        """
        deadline = time.monotonic() + timeout
        todo, waiting, replies = list(contents), dict[str, int](), dict[int, Message]()
        while todo or waiting:
            now = todo[: self.at_once - len(waiting)] if self.at_once else todo
            todo = todo[len(now) :]
            waiting |= self._send(
                kind, {node: contents[node] for node in now}, max(1.0, deadline - time.monotonic())
            )
            for reply in self.grid.pull_messages(list(waiting)):
                # by message, since the sender of an error is not the node
                node = waiting.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:
                    replies[node] = reply
                    self.up += wire.size(reply.content) if reply.has_content() else 0
            if time.monotonic() > deadline:
                break
            if waiting:
                time.sleep(POLL_SECONDS)
        return replies

    def _send(self, kind: str, contents: Mapping[int, RecordDict], ttl: float) -> dict[str, int]:
        """Send messages; return the node of each message that was accepted, by message id."""
        if not contents:
            return {}
        messages = [
            Message(content, dst_node_id=node, message_type=kind, ttl=ttl)
            for node, content in contents.items()
        ]
        self.down += sum(wire.size(content) for content in contents.values())
        numbers = self.grid.push_messages(messages)  # None for a node that has just gone
        return {number: node for number, node in zip(numbers, contents, strict=False) if number}


def answer_of(reply: Message | None) -> RecordDict | str:
    """Return the content of a reply, or what its sender does instead, in the server's words."""
    if reply is None:
        return "gives no reply in time"
    if reply.has_error():
        code = reply.error.code
        return "gives no reply: " + ERRORS.get(code, f"Flower's error {code}")
    reason = refused(reply.content)
    return reply.content if reason is None else f"refuses: {reason}"


def content_of(reply: Message | None, who: str) -> RecordDict | None:
    """Return the content of a reply; None, logged, if it is missing, an error or a refusal."""
    answer = answer_of(reply)
    if isinstance(answer, str):
        log.warning("%s %s", who, answer)
        return None
    return answer
