"""Secure aggregation with Flower's SecAgg+: the agreed settings, the masks, and a client's steps.

In four messages the clients of a group agree on masks that cancel in their sum, and each sends its
mean under its mask.
"""

import hashlib
import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.compat.common.recorddict_compat import fitres_to_recorddict

from fedmix.core.types import Array
from fedmix.exchange import Exchange
from fedmix.flower.wire import Refused

QUANTA = 1 << 22
MODULUS = 1 << 32


def masks(seed: bytes, modulus: int, shapes: list[tuple[int, ...]]) -> list[Array]:
    """Return integers in [0, modulus) that cannot be guessed without the seed.

    Args:
        seed: The secret key.
        modulus: A power of two, at most 2^32.
        shapes: The shapes of the arrays to return.
    """
    stream = Cipher(ChaCha20(hashlib.sha256(seed).digest(), bytes(16)), None).encryptor()
    words = (
        np.frombuffer(stream.update(bytes(4 * math.prod(shape))), "<u4").reshape(shape)
        for shape in shapes
    )
    return [word.astype(np.int64) & (modulus - 1) for word in words]


def use_masks(module: Any) -> None:
    """Replace the mask generator of a Flower module by `masks`.

    Flower 1.41 reduces every key to 32 bits before it makes a mask of it (flwrlabs/flower#7522),
    few enough to try them all. Raises ImportError if the module has no such generator.
    """
    if not hasattr(module, "pseudo_rand_gen"):
        raise ImportError(
            f"{module.__name__} has no pseudo_rand_gen, in whose place fedmix puts masks that "
            "cannot be guessed; "
            "install the version of flwr that fedmix[flower] asks for"
        )
    module.pseudo_rand_gen = masks


use_masks(import_module("flwr.client.mod.secure_aggregation.secaggplus_mod"))


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


def asks(content: RecordDict) -> bool:
    """Whether a message is a step of the protocol."""
    return RECORD_KEY_CONFIGS in content


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
    """
    # Flower passes other types of messages to `fit`, whose reply is not masked
    if message.metadata.message_type != MessageType.TRAIN:
        raise Refused("other kind")
    asked = message.content.config_records[RECORD_KEY_CONFIGS]
    stage = asked.get(Key.STAGE)
    if "summed" in context.state:
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

    reply = secaggplus_mod(message, context, fit)
    if stage == Stage.UNMASK:
        context.state["summed"] = ConfigRecord({"done": True})
    return reply.content
