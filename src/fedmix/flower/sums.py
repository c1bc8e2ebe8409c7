"""The server's side of secure aggregation: Flower's workflow for one group of clients at a time, and what came of it."""

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

from fedmix.exchange import Exchange, Means
from fedmix.flower import wire
from fedmix.flower.post import Post, content_of
from fedmix.flower.secure import MODULUS, QUANTA, largest, use_masks
from fedmix.flower.wire import Rejected

Shape = tuple[int, ...]
log = logging.getLogger("fedmix.flower")
use_masks(secaggplus_workflow)  # as the clients do


class Group:
    """What the workflow knows of the grid: the clients of one group, through the post, and only answers that can be summed.

    `refused` are nodes that will not take part, `failed` others that did not answer well: all, where one refuses later on, for
    what it refuses may be another's doing. `stage` is the last one that was begun.
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

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:  # noqa: ARG002 - the grid's
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
                refused = reply is not None and reply.has_content() and wire.refused(reply.content) is not None
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
        """The mean over the clients of these nodes; None where not all of them took part to the end."""
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
        values = [array.numpy() for array in context.state.array_records[MAIN_PARAMS_RECORD].values()]
        if not values:
            return None
        x, y = (torch.from_numpy(np.asarray(value, np.float32))[None] for value in values)
        return Means(x, y)
