"""Messages to nodes and their replies: sent together, counted, waited for as long as allowed and no longer."""

import logging
import time
from collections.abc import Mapping

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedmix.flower import wire

POLL_SECONDS = 0.5
log = logging.getLogger("fedmix.flower")


class Post:
    """Asks nodes, and counts the bytes of what goes down to them and comes up."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.up = self.down = 0

    def online(self) -> set[int]:
        """The nodes that the SuperLink hears of."""
        return set(self.grid.get_node_ids())

    def ask(self, kind: str, contents: Mapping[int, RecordDict], timeout: float) -> dict[int, Message]:
        """Send each node its message; the replies that come within `timeout` seconds, by the node that was asked."""
        if not contents:
            return {}
        deadline = time.monotonic() + timeout
        messages = [Message(content, dst_node_id=node, message_type=kind, ttl=timeout) for node, content in contents.items()]
        self.down += sum(wire.size(content) for content in contents.values())
        waiting = dict(zip(self.grid.push_messages(messages), contents, strict=True))
        replies: dict[int, Message] = {}
        while waiting:
            for reply in self.grid.pull_messages(list(waiting)):
                replies[waiting.pop(reply.metadata.reply_to_message_id)] = reply  # an error's sender is not the node
                self.up += wire.size(reply.content) if reply.has_content() else 0
            if not waiting or time.monotonic() > deadline:
                break
            time.sleep(POLL_SECONDS)
        return replies


def content_of(reply: Message | None, who: str) -> RecordDict | None:
    """What a reply says; None, with a line in the log, if there is none or it does not do what was asked."""
    if reply is None:
        log.warning("no reply from %s in time", who)
    elif reply.has_error():
        log.warning("no reply from %s: %.300s", who, " ".join((reply.error.reason or "").split()))
    elif (reason := wire.refused(reply.content)) is not None:
        log.warning("%s refuses: %s", who, reason)
    else:
        return reply.content
    return None
