"""A grid whose nodes are in this process: Flower's messages and contexts, without its processes and
networks.
"""

import itertools
from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any, cast

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

Tamper = Callable[[Message, Message], Message | None]
"""What becomes of a reply on its way, given the message it answers; None loses it."""


class Nodes(Grid):
    """Answers every message at once.

    Nodes can be added and removed, and their replies tampered with, by client.
    """

    def __init__(self, app: ClientApp, clients: Iterable[int], **config: Any) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 0
        self.app, self.numbers = app, itertools.count(1)
        self.contexts: dict[int, Context] = {}
        self.tamper: dict[int, Tamper] = {}
        self.sent: list[Message] = []
        self.replies: dict[str, Message] = {}
        for client in clients:
            self.add(client, **config)

    def add(self, client: int, **config: Any) -> int:
        node = 1000 + next(self.numbers)
        self.contexts[node] = Context(1, node, {"partition-id": client, **config}, RecordDict(), {})
        return node

    def node_of(self, client: int) -> int:
        return next(n for n, c in self.contexts.items() if c.node_config["partition-id"] == client)

    def client_of(self, message: Message) -> int:
        return cast(int, self.contexts[message.metadata.dst_node_id].node_config["partition-id"])

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return [self._deliver(message) for message in messages]

    def _deliver(self, message: Message) -> str:
        number = str(next(self.numbers))
        message.metadata.__dict__["_message_id"] = number
        self.sent.append(message)
        context = self.contexts[message.metadata.dst_node_id]
        try:
            reply: Message | None = self.app(
                deepcopy(message), context
            )  # which a client may change
        except Exception as error:  # as Flower does
            reply = Message(Error(2, repr(error)), reply_to=message)
        tamper = self.tamper.get(self.client_of(message))
        if tamper and reply is not None:
            reply = tamper(message, reply)
        if reply is not None:
            self.replies[number] = reply
        return number

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(number) for number in message_ids if number in self.replies]

    def of_kind(self, kind: str, client: int | None = None) -> list[Message]:
        """What was sent so far of a kind, to one client or to all."""
        kinds = [m for m in self.sent if m.metadata.message_type == kind]
        return [m for m in kinds if client is None or self.client_of(m) == client]

    def set_run(self, run: Run) -> None: ...

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(
        self,
        messages: Iterable[Message],
        *,
        timeout: float | None = None,  # noqa: ARG002
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))
