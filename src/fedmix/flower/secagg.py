"""Secure aggregation with Flower's SecAgg+: the agreed settings, the masks, and a client's steps.

In four messages the clients of a group agree on masks that cancel in their sum, and each sends its
mean under its mask.
"""

from collections.abc import Callable

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.compat.common.recorddict_compat import fitres_to_recorddict

from fedmix.core.types import Array
from fedmix.exchange import Exchange
from fedmix.flower import legacy
from fedmix.flower.refusals import Refused
from fedmix.flower.wire import Rejected

QUANTA = 1 << 22
MODULUS = 1 << 32
SUMMED = "fedmix.summed"
client = legacy.with_masks(legacy.CLIENT)


def largest(how: Exchange) -> float:
    """Return a bound on the values of a mean: the clipping norm and ten deviations of the noise."""
    return max(how.clip or 0.0, how.label_clip or 0.0) + 10 * max(how.noises)


def agreed(how: Exchange, members: int) -> dict[str, int | float]:
    """Return the protocol settings of a group; a sum needs every member to stay to the end."""
    sizes = dict.fromkeys((Key.SAMPLE_NUMBER, Key.SHARE_NUMBER, Key.THRESHOLD), members)
    return sizes | {
        Key.CLIPPING_RANGE: largest(how), Key.TARGET_RANGE: QUANTA, Key.MOD_RANGE: MODULUS,
        Key.MAX_WEIGHT: 1.0,
    }  # fmt: skip


def take_step(
    message: Message, context: Context, how: Exchange, means: Callable[[], list[Array]]
) -> RecordDict:
    """Answer a step of the protocol.

    The answers are keys, shares of keys, the masked means, and what removes the masks of a sum. The
    settings are the client's own, whatever the message says. A client takes part in only one sum of
    a run, since the difference of two sums is a client's mean.

    Args:
        message: The server's message.
        context: Flower's context, which keeps the client's state.
        how: The agreed exchange.
        means: Returns the arrays to add to the sum.

    Raises:
        Refused: The step is not as agreed, or the client is in a sum already.
        Rejected: The message is no step of the protocol.
    """
    asked = message.content.get(RECORD_KEY_CONFIGS)
    if not isinstance(asked, ConfigRecord):
        raise Rejected("its step towards a sum is missing")
    stage = asked.get(Key.STAGE)
    if SUMMED in context.state:
        raise Refused("summed")
    if stage == Stage.SETUP:
        members = asked.get(Key.SAMPLE_NUMBER)
        if (
            type(members) is not int
            or members < how.average
            or dict(asked) != {Key.STAGE: stage, **agreed(how, members)}
        ):
            raise Refused("other sum")
    if stage == Stage.UNMASK and asked.get(Key.DEAD_NODE_ID_LIST) != []:
        raise Refused("without")
    for name in (Key.SOURCE_LIST, Key.ACTIVE_NODE_ID_LIST):
        nodes = asked.get(name)
        # Flower only counts the nodes: one listed twice would leave another one out
        if isinstance(nodes, list) and len(set(nodes)) < len(nodes):
            raise Refused("twice")

    def fit(message: Message, _: Context) -> Message:
        if stage != Stage.COLLECT_MASKED_VECTORS:
            raise Refused("outside")
        found = FitRes(Status(Code.OK, ""), ndarrays_to_parameters(means()), 1, {})
        return Message(fitres_to_recorddict(found, keep_input=False), reply_to=message)

    # Flower passes other types of messages to `fit`, whose reply is not masked
    kind, message.metadata.message_type = message.metadata.message_type, MessageType.TRAIN
    reply: Message = client.secaggplus_mod(message, context, fit)
    message.metadata.message_type = kind
    if stage == Stage.UNMASK:
        context.state[SUMMED] = ConfigRecord({"done": True})
    return reply.content
