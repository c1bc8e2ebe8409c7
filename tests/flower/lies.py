"""Ways in which a reply can be no good, and an app whose node replies so: real federations get this
file with their app.
"""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedmix.flower.wire import Presence

Change = Callable[[RecordDict], object]


def arrays(content: RecordDict, part: str = "weights") -> ArrayRecord:
    return cast(ArrayRecord, content[part])


def weight(
    content: RecordDict, change: Callable[[Any], Any], name: str = "1.weight", part: str = "weights"
) -> None:
    arrays(content, part)[name] = Array(change(arrays(content, part)[name].numpy().copy()))


def about(**values: Any) -> Change:
    def change(content: RecordDict) -> None:
        for name, value in values.items():
            record = "fedmix" if name in Presence._fields else "about"
            content[record] = ConfigRecord({**cast(ConfigRecord, content[record]), name: value})

    return change


def bytes_of_bias(change: Callable[[bytes], bytes]) -> Change:
    """Another content behind the same claims."""

    def tamper(content: RecordDict) -> None:
        array = arrays(content)["1.bias"]
        changed = change(array.data)
        assert changed != array.data
        arrays(content)["1.bias"] = Array(array.dtype, array.shape, array.stype, changed)

    return tamper


def header(text: bytes) -> bytes:
    """An array without values, whose header says what one likes."""
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


UPDATES: dict[str, tuple[Change, str]] = {
    "nan": (lambda c: weight(c, lambda w: w * np.nan), "hold NaN or infinity"),
    "infinity": (lambda c: weight(c, lambda w: w + np.inf), "hold NaN or infinity"),
    "shape": (
        lambda c: weight(c, lambda w: w.T.copy()),
        r"have shape \(5, 3\) instead of \(3, 5\)",
    ),
    "float64": (
        lambda c: weight(c, lambda w: w.astype(np.float64)),
        "are float64 instead of float32",
    ),
    "missing": (lambda c: arrays(c).pop("0.0.bias"), "lack '0.0.bias'"),
    "more": (lambda c: arrays(c).update({"z": Array(np.zeros(2))}), "hold 'z'"),
    "no weights": (lambda c: c.pop("weights"), "weights are missing"),
    "huge": (lambda c: weight(c, lambda w: w + 1e6), "more than 10 times that of the weights"),
    "short": (bytes_of_bias(lambda b: b[:-4]), "8 bytes long instead of 12"),
    "four terabytes": (
        bytes_of_bias(lambda b: b.replace(b"(3,), }" + 12 * b" ", b"(1000000000000,), }")),
        r"have shape \(1000000000000,\) instead of \(3,\)",
    ),
    "a shape too long to write": (
        bytes_of_bias(
            lambda _: header(
                b"{'descr': '<f4', 'fortran_order': False, 'shape': (0x" + b"f" * 5000 + b",), }"
            )
        ),
        "have a shape that nothing can have",
    ),
    "torn header": (bytes_of_bias(lambda b: b.replace(b"}", b"(")), "cannot be read"),
    "not an array": (bytes_of_bias(lambda _: b"x"), "cannot be read"),
    "round": (about(round=5), "for round 5 instead of 0"),
    "client": (about(client=3), "says that it is client 3"),
    "no samples": (about(samples=0), "0, not a positive integer"),
    "negative": (about(samples=-4), "-4, not a positive integer"),
    "fraction": (about(samples=7.5), "7.5 instead of an int"),
    "true": (about(samples=True), "True instead of an int"),
    "other samples": (about(samples=1000), "though its data did not change"),
    "loss": (about(loss=float("nan")), "loss is NaN"),
    "a loss beyond float32": (about(loss=-1e300), "loss is NaN, infinite or beyond float32"),
    "nothing": (lambda c: c.clear(), "instead of an int"),
}


def one_more(content: RecordDict) -> None:
    for name in ("x", "y"):
        weight(content, lambda means: np.concatenate([means, means[:1]]), name, "means")


MEANS: dict[str, Change] = {
    "one more": one_more,
    "fewer samples": about(m=1),
    "narrow": lambda c: weight(c, lambda x: x[:, 1:].copy(), "x", "means"),
}


class Lying(ClientApp):
    """Replies as an honest app does, but for the lies that its node is told to tell: one of its
    means, then one in each round.
    """

    def __init__(self, honest: ClientApp) -> None:
        super().__init__()
        self.honest = honest

    def __call__(self, message: Message, context: Context) -> Message:
        reply, kind = self.honest(message, context), message.metadata.message_type
        if "lies" in context.node_config and kind in ("query.means", "train"):
            of_means, *of_updates = str(context.node_config["lies"]).split(", ")
            round_ = cast(int, cast(ConfigRecord, message.content["about"])["round"])
            change = MEANS[of_means] if kind == "query.means" else UPDATES[of_updates[round_]][0]
            change(reply.content)
        return reply
