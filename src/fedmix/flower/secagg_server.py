"""The server's side of secure aggregation: means over groups of clients, each by Flower's workflow
for one group.
"""

import logging
from collections.abc import Iterable
from typing import cast

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.server import LegacyContext, SimpleClientManager
from flwr.server.compat.grid_client_proxy import GridClientProxy
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.server.workflow.secure_aggregation import secaggplus_workflow
from flwr.serverapp import Grid

from fedmix.exchange import Exchange, Means, Releases, Traffic, split_at_random
from fedmix.flower import wire
from fedmix.flower.exchange import Asked
from fedmix.flower.messages import Post, content_of
from fedmix.flower.roster import Roster
from fedmix.flower.secagg import MODULUS, QUANTA, largest, use_masks
from fedmix.flower.wire import Rejected

Shape = tuple[int, ...]
log = logging.getLogger("fedmix.flower")
use_masks(secaggplus_workflow)  # as the clients do


class Group:
    """What the workflow knows of the grid: the clients of one group, through the post, and only
    answers that can be summed.

    `refused` are nodes that will not take part, `failed` others that did not answer well: all,
    where one refuses later on, for what it refuses may be another's doing. `stage` is the last one
    that was begun.
    """

    def __init__(self, post: Post, seconds: float, shapes: list[Shape]) -> None:
        self.post, self.seconds, self.shapes = post, seconds, shapes
        self.refused: set[int] = set()
        self.failed: set[int] = set()
        self.stage: object = None

    @property
    def unmasked(self) -> bool:
        """Whether clients were asked for what takes the masks off their sum."""
        return self.stage == Stage.UNMASK

    def send_and_receive(
        self,
        messages: Iterable[Message],
        *,
        timeout: float | None = None,  # noqa: ARG002 - the grid's
    ) -> list[Message]:
        """As the grid's own; the post waits as long as the run's settings say."""
        contents = {message.metadata.dst_node_id: message.content for message in messages}
        self.stage = next(iter(contents.values())).config_records[RECORD_KEY_CONFIGS][Key.STAGE]
        replies = self.post.ask("train", contents, self.seconds)
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
                refused = (
                    reply is not None
                    and reply.has_content()
                    and wire.refused(reply.content) is not None
                )
                if refused and self.stage == Stage.SETUP:
                    self.refused.add(node)
                else:
                    self.failed |= set(contents) if refused else {node}
                log.warning("node %s: %s", node, error)
        return good

    def _check(self, content: RecordDict) -> None:
        """Before Flower reads arrays of any size into memory."""
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
        """The mean over the clients of these nodes; None where not all of them took part to the
        end.
        """
        manager = SimpleClientManager()
        for node in nodes:
            manager.register(GridClientProxy(node, cast(Grid, self), 0))
        context = LegacyContext(Context(0, 0, {}, RecordDict(), {}), client_manager=manager)
        context.state[MAIN_CONFIGS_RECORD] = ConfigRecord({WorkflowKey.CURRENT_ROUND: 0})
        context.state[MAIN_PARAMS_RECORD] = ArrayRecord()
        workflow = SecAggPlusWorkflow(
            num_shares=1.0, reconstruction_threshold=1.0, max_weight=1.0,
            clipping_range=largest(how), quantization_range=QUANTA, modulus_range=MODULUS,
        )  # fmt: skip
        try:
            workflow(cast(Grid, self), context)
        except Exception as error:  # Flower's own code, on what clients sent
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
    exchange: Asked,
    roster: Roster,
    due: list[int],
    seconds: float,
    like: Means,
    rng: np.random.Generator,
) -> tuple[list[Releases], list[int], Traffic]:
    """Means over random groups of the clients that are due, one after the other, the clients in
    them, and bytes of masks.

    Where one fails, the others of its group are put into another, unless they were asked for what
    takes the masks off: that may have left them, so it counts, and they take part in no other sum.
    A mean of several has the first as its owner.
    """
    how, presence = exchange.how, roster.presence
    shapes = [(1,), *(tuple(part.shape[1:]) for part in like)]  # the first is Flower's, for weights
    sent, done, traffic = list[Releases](), list[int](), Traffic()
    waiting = [k for k in due if presence[k].samples >= how.cutoff]
    if len(waiting) < how.average:
        return sent, done, traffic
    exchange.expect({k: presence[k].samples for k in waiting})
    while len(waiting) >= how.average:
        clients = [waiting[i] for i in sorted(split_at_random(len(waiting), how.average, rng)[0])]
        at = {roster.node[k]: k for k in clients}
        group = Group(roster.post, seconds, shapes)
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
            traffic += Traffic(
                means_up=(2 * len(clients) - 1) * mean.bytes
            )  # each sends integers of 8 bytes
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
