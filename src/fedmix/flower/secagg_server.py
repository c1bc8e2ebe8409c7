"""The server's side of secure aggregation: Flower's workflow for one group at a time."""

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.server import LegacyContext, SimpleClientManager
from flwr.server.compat.grid_client_proxy import GridClientProxy
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.serverapp import Grid

from fedmix.exchange import Exchange, Means, Releases, Traffic, split_at_random
from fedmix.flower import legacy, wire
from fedmix.flower.messages import Post, content_of
from fedmix.flower.refusals import refused
from fedmix.flower.secagg import MODULUS, QUANTA, largest
from fedmix.flower.wire import Rejected

if TYPE_CHECKING:
    from fedmix.flower.exchange import Asked

Shape = tuple[int, ...]
log = logging.getLogger("fedmix.flower")
server = legacy.with_masks(legacy.SERVER)


class Group:
    """The grid as the workflow sees it: one group of clients, and only replies that can be summed.

    Attributes:
        refused: Nodes that refuse to take part.
        failed: Nodes that did not reply well. If one refuses after the first stage, all of them,
            since another client may be the cause.
        stage: The last stage that was begun.

    Args:
        post: Sends the messages.
        seconds: How long to wait for replies.
        shapes: Shapes of the arrays of a masked mean.
    """

    def __init__(self, post: Post, seconds: float, shapes: list[Shape]) -> None:
        self.post, self.seconds, self.shapes = post, seconds, shapes
        self.refused: set[int] = set()
        self.failed: set[int] = set()
        self.stage: object = None

    @property
    def unmasked(self) -> bool:
        """Whether the clients were asked for what removes the masks of their sum."""
        return self.stage == Stage.UNMASK

    def send_and_receive(
        self,
        messages: Iterable[Message],
        *,
        timeout: float | None = None,  # noqa: ARG002 - an argument of the grid's method
    ) -> list[Message]:
        """Send messages and return the valid replies; the run's settings limit the time."""
        contents = {message.metadata.dst_node_id: message.content for message in messages}
        self.stage = next(iter(contents.values())).config_records[RECORD_KEY_CONFIGS][Key.STAGE]
        replies = self.post.ask("query.sum", contents, self.seconds)
        good = []
        for node in contents:
            reply = replies.get(node)
            content = content_of(reply, f"node {node}")
            try:
                if content is None:
                    raise Rejected("it takes no part in a sum")
                self._check(content)
                assert reply is not None
                good.append(reply)
            except Rejected as error:
                says = reply is not None and reply.has_content() and refused(reply.content)
                if says and self.stage == Stage.SETUP:
                    self.refused.add(node)
                else:
                    self.failed |= set(contents) if says else {node}
                log.warning("node %s: %s", node, error)
        return good

    def _check(self, content: RecordDict) -> None:
        """Check a reply before Flower reads its arrays into memory; raise Rejected if it is bad."""
        said = content.get(RECORD_KEY_CONFIGS)
        if not isinstance(said, ConfigRecord):
            raise Rejected("it answers something else")
        if Key.MASKED_PARAMETERS in said:
            arrays = said[Key.MASKED_PARAMETERS]
            if not isinstance(arrays, list) or len(arrays) != len(self.shapes):
                raise Rejected(f"its masked mean is not {len(self.shapes)} arrays")
            for array, shape in zip(arrays, self.shapes, strict=True):
                if not isinstance(array, bytes):
                    raise Rejected("its masked mean is no array")
                wire.read_array(array, "masked mean", shape, np.int64)

    def mean(self, nodes: list[int], how: Exchange) -> Means | None:
        """Return the mean over the clients of these nodes; None if one left before the end."""
        manager = SimpleClientManager()
        for node in nodes:
            manager.register(GridClientProxy(node, cast(Grid, self), 0))
        context = LegacyContext(Context(0, 0, {}, RecordDict(), {}), client_manager=manager)
        context.state[MAIN_CONFIGS_RECORD] = ConfigRecord({WorkflowKey.CURRENT_ROUND: 0})
        context.state[MAIN_PARAMS_RECORD] = ArrayRecord()
        workflow = server.SecAggPlusWorkflow(
            num_shares=1.0, reconstruction_threshold=1.0, max_weight=1.0,
            clipping_range=largest(how), quantization_range=QUANTA, modulus_range=MODULUS,
        )  # fmt: skip
        try:
            workflow(cast(Grid, self), context)
        except Exception as error:  # raised by Flower on what clients sent
            log.warning("a sum failed: %s", type(error).__name__)
            return None
        values = [
            array.numpy() for array in context.state.array_records[MAIN_PARAMS_RECORD].values()
        ]
        if not values:
            return None
        x, y = (torch.from_numpy(np.asarray(value, np.float32))[None] for value in values)
        return Means(x, y)


def collect_sums(
    exchange: "Asked", due: list[int], like: Means, rng: np.random.Generator
) -> tuple[list[Releases], list[int], Traffic]:
    """Collect means over random groups of the clients that are due, one group after the other.

    If a group fails, its other clients join another group, unless they were asked to remove the
    masks: the sum may then have left them, so it counts, and they take part in no other sum. The
    owner of a mean over several clients is the first of them.

    Args:
        exchange: The exchange; its counts are updated and written to the ledger.
        due: The clients that have to send means.
        like: Example of means, for their shapes.
        rng: Generator of the random groups.

    Returns:
        The means, the clients in them, and the bytes that the masks added.
    """
    how, roster, presence = exchange.how, exchange.roster, exchange.roster.presence
    shapes = [(1,), *(tuple(part.shape[1:]) for part in like)]  # the first is Flower's, for weights
    sent, done, traffic = list[Releases](), list[int](), Traffic()
    waiting = [k for k in due if presence[k].samples >= how.cutoff]
    if len(waiting) < how.average:
        return sent, done, traffic
    exchange.expect({k: presence[k].samples for k in waiting})
    while len(waiting) >= how.average:
        clients = [waiting[i] for i in sorted(split_at_random(len(waiting), how.average, rng)[0])]
        at = {roster.node[k]: k for k in clients}
        group = Group(roster.post, exchange.seconds, shapes)
        mean = group.mean(list(at), how)
        settled = clients if group.unmasked else [at[node] for node in group.refused]
        exchange.settle({k: presence[k].digest for k in settled})
        if group.unmasked:
            exchange.count(np.array(clients), min(presence[k].samples for k in clients))
        if group.unmasked and not mean:
            log.warning(
                "the sum of clients %s was lost at its last step, and they take part in no other",
                clients,
            )
        if mean:
            # each client sends integers of 8 bytes
            traffic += Traffic(means_up=(2 * len(clients) - 1) * mean.bytes)
            if all(float(part.abs().max()) <= largest(how) * (1 + 1e-6) for part in mean):
                sent.append(Releases(np.array([clients[0]]), *mean))
                done += clients
            else:
                log.warning(
                    "the mean of clients %s is none, so that one of them broke the rules", clients
                )
        failed = [] if group.unmasked else [at[node] for node in group.refused | group.failed]
        waiting = [k for k in waiting if k not in (failed or clients)]
    exchange.ledger.write(exchange)
    return sent, done, traffic
