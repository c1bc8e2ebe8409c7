"""The content of Flower's messages, and how replies are read: every value is checked before use."""

import math
from collections.abc import Collection, Mapping, Sequence
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedmix.core.errors import FedmixError
from fedmix.core.files import printable
from fedmix.core.types import Params
from fedmix.exchange import Exchange, Means

OURS = "fedmix"  # the record of every reply that says who replies, or refuses
Shapes = Mapping[str, tuple[int, ...]]
MOST_SAMPLES = 2**40
LONGEST_AXIS = 2**48
LARGEST_LOSS = torch.finfo(torch.float32).max


class Rejected(FedmixError):
    """A message is not as agreed; the text says what is wrong with it."""


def pack(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """Return tensors as a record of a message."""
    return ArrayRecord(
        {name: Array(np.ascontiguousarray(t.detach().cpu().numpy())) for name, t in tensors.items()}
    )


def unpack(
    content: RecordDict, part: str, shapes: Shapes, *, integers: Collection[str] = ()
) -> Params:
    """Return the tensors in a part of a message, of exactly these names and shapes.

    Args:
        content: Content of the message.
        part: Name of the record.
        shapes: Shape of each tensor by name; -1 stands for any length.
        integers: Names of the int64 tensors; the others are float32.

    Raises:
        Rejected: A tensor is missing, unknown, of another shape or type, or not finite.
    """
    record = content.get(part)
    if not isinstance(record, ArrayRecord):
        raise Rejected(f"its {part} are missing")
    if set(record) != set(shapes):
        missing, more = sorted(set(shapes) - set(record)), sorted(set(record) - set(shapes))
        raise Rejected(
            f"its {part} lack {missing[0]!r}"
            if missing
            else f"its {part} hold {more[0]!r:.80}, which nobody asked for"
        )
    kinds = {name: np.int64 if name in integers else np.float32 for name in shapes}
    return {
        name: read_array(record[name].data, f"{part} {name!r}", shape, kinds[name])
        for name, shape in shapes.items()
    }


def read_array(data: bytes, what: str, shape: tuple[int, ...], kind: type[np.generic]) -> Tensor:
    """Return an array of a message; raise Rejected if shape or type are wrong or it is not finite.

    The header is checked before memory is allocated: a few bytes can claim an array of any size.
    """
    stream = BytesIO(data)
    try:
        version = np.lib.format.read_magic(stream)
        if version != (1, 0):
            raise Rejected(f"its {what} are in another format")
        said, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    except Rejected:
        raise
    except Exception as error:  # numpy reads a header as Python, which fails in many ways
        raise Rejected(f"its {what} cannot be read") from error
    # a bound, since Python does not print integers of thousands of digits
    if any(not 0 <= n < LONGEST_AXIS for n in said):
        raise Rejected(f"its {what} have a shape that nothing can have")
    if len(said) != len(shape) or any(
        want not in (-1, n) for n, want in zip(said, shape, strict=True)
    ):
        raise Rejected(
            f"its {what} have shape {said!s:.80} instead of {shape}".replace("-1", "any")
        )
    if dtype != kind or fortran:
        raise Rejected(
            f"its {what} are {printable(dtype):.40} instead of {kind.__name__}, in C order"
        )
    values = memoryview(data)[stream.tell() :]
    if len(values) != dtype.itemsize * math.prod(said):
        raise Rejected(
            f"its {what} are {len(values)} bytes long instead of {dtype.itemsize * math.prod(said)}"
        )
    tensor = torch.from_numpy(np.frombuffer(values, kind).reshape(said).copy())
    if not torch.isfinite(tensor).all():
        raise Rejected(f"its {what} hold NaN or infinity")
    return tensor


def size(content: RecordDict) -> int:
    """Return the bytes of a message's content: names, arrays and texts, and 8 for a number.

    Flower's own count fails on empty texts.
    """
    return sum(
        len(name) + _size(value) for record in content.values() for name, value in record.items()
    )


def _size(value: Any) -> int:
    if isinstance(value, list):
        return sum(map(_size, value))
    return (
        len(value.data)
        if isinstance(value, Array)
        else len(value)
        if isinstance(value, str | bytes)
        else 8
    )


def said(content: RecordDict, name: str, kind: type, record: str = "about") -> Any:
    """Return a plain value of a message; raise Rejected if it is missing or of another type."""
    about = content.get(record)
    value = about.get(name) if isinstance(about, ConfigRecord) else None
    if type(value) is not kind:  # not isinstance: a bool is no int here
        raise Rejected(
            f"its {name} is {value!r:.40} instead of {'a' if kind is not int else 'an'} "
            f"{kind.__name__}"
        )
    return value


def holds(content: RecordDict) -> object:
    """Return the version of the pool that a reply's client says it holds, whatever it is."""
    about = content.get(OURS)
    return about.get("holds") if isinstance(about, ConfigRecord) else None


class Presence(NamedTuple):
    """Who a node says it is, with every reply.

    Attributes:
        client: Number of its client.
        samples: Number of samples, n_k.
        digest: A hash that changes with the client's data.
        holds: The version of the pool that it holds; 0 for none.
        trains: Whether its policy lets weights out.
    """

    client: int
    samples: int
    digest: int
    holds: int = 0
    trains: bool = True

    @staticmethod
    def read(content: RecordDict, clients: int) -> "Presence":
        """Read it from a message; raise Rejected if a value is missing or out of range."""
        client, samples, digest, holds, trains = (
            said(content, name, kind, OURS) for name, kind in Presence.__annotations__.items()
        )
        if not 0 <= client < clients:
            raise Rejected(
                f"it says that it is client {client}, and there are clients 0..{clients - 1}; "
                "correct its partition-id"
            )
        if not 0 < samples <= MOST_SAMPLES:
            raise Rejected(f"its number of samples is {samples}, not a positive integer")
        if not 0 < digest < 2**63:
            raise Rejected("its digest is not a positive integer")
        return Presence(client, samples, digest, holds, trains)

    def after(self, before: "Presence") -> "Presence":
        """Return it; raise Rejected if it contradicts what the same node said before."""
        if self.client != before.client:
            raise Rejected(f"it says that it is client {self.client} now")
        if self.digest == before.digest and self.samples != before.samples:
            raise Rejected(
                f"its number of samples went from {before.samples} to {self.samples} though its "
                "data did not change"
            )
        return self


def group_size(content: RecordDict, samples: int) -> int:
    """Return how many samples are in each of a client's means, 0 if it sends none.

    Raises Rejected if that is negative, or more than its `samples`.
    """
    m = int(said(content, "m", int))
    if not 0 <= m <= samples:
        raise Rejected(
            f"its means are of M_k={m} samples, more than the {samples} it has, or fewer than none"
        )
    return m


def read_means(
    content: RecordDict,
    asked: Exchange,
    samples: int,
    like: Means,
    largest: Sequence[float],
    *,
    labels: bool,
) -> Means:
    """Return the means in a reply, if they are what was asked for, or reveal less.

    Args:
        content: Content of the reply.
        asked: The exchange that was asked for.
        samples: The client's number of samples; with its M_k it limits the number of means.
        like: Example of means, for their shapes.
        largest: Bounds on the absolute values of inputs and of labels.
        labels: Whether labels must be shares of classes.

    Raises:
        Rejected: The means are not as asked for.
    """
    m, least = (
        group_size(content, samples),
        asked.group_size(0, samples) if asked.m != "all" else samples,
    )
    if m < least:
        raise Rejected(
            f"its means are of M_k={m} samples, fewer than the {least} that were asked for"
        )
    if said(content, "noise", float) < asked.noise:
        raise Rejected(
            f"its means carry less noise than the deviation of {asked.noise} that was asked for"
        )
    means = unpack(content, "means", {"x": (-1, *like.x.shape[1:]), "y": (-1, *like.y.shape[1:])})
    x, y = means["x"], means["y"]
    groups = samples // m
    if (
        len(x) != len(y)
        or not 0 < len(x) <= groups
        or (asked.split == "random" and len(x) != groups)
    ):
        raise Rejected(
            f"it sent {len(x)} means and {len(y)} label vectors; {samples} samples with M_k={m} "
            f"make {groups}"
        )
    for values, most in zip((x, y), largest, strict=True):
        if (found := float(values.abs().max())) > most:
            raise Rejected(
                f"its means hold {found:.3g}, more than the {most:.3g} that is plausible"
            )
    if labels and (
        bool((y < 0).any()) or not torch.allclose(y.sum(1), torch.ones(len(y)), atol=1e-3)
    ):
        raise Rejected("its mean labels are not shares of classes")
    return Means(x, y)


def read_pool(content: RecordDict, like: Means, *, entries: bool) -> Params:
    """Return the pool in a message, of means with the shapes of `like`.

    With `entries`, it holds the entries that this client may draw. Raises Rejected if it is empty
    or not as agreed.
    """
    shapes: dict[str, tuple[int, ...]] = {
        "x": (-1, *like.x.shape[1:]),
        "y": (-1, *like.y.shape[1:]),
    }
    pool = unpack(
        content, "pool", shapes | ({"entries": (-1,)} if entries else {}), integers=("entries",)
    )
    if not 0 < len(pool["x"]) == len(pool["y"]):
        raise Rejected(f"its pool has {len(pool['x'])} means and {len(pool['y'])} label vectors")
    if entries and (
        not len(pool["entries"])
        or not 0 <= int(pool["entries"].min()) <= int(pool["entries"].max()) < len(pool["x"])
    ):
        raise Rejected(f"its entries are none, or not of a pool of {len(pool['x'])}")
    return pool


class Update(NamedTuple):
    """A client's update of a round: presence, new weights, loss, and what it sends of its state."""

    presence: Presence
    params: Params
    loss: float
    sent: Params


def read_update(
    content: RecordDict,
    round_: int,
    presence: Presence,
    clients: int,
    params: Params,
    largest: float,
    shared: Params | None = None,
) -> Update:
    """Return the update in a reply.

    Args:
        content: Content of the reply.
        round_: The round that was asked for.
        presence: What the client last said about itself.
        clients: Number of clients.
        params: The weights that the client started from.
        largest: The largest norm of the change, relative to that of the weights.
        shared: State that all clients share, for the shapes of what the client sends; None if none.

    Raises:
        Rejected: The update is of another round or client, incomplete, not finite or too large.
    """
    if said(content, "round", int) != round_:
        raise Rejected(f"its update is for round {said(content, 'round', int)} instead of {round_}")
    now = Presence.read(content, clients).after(presence)
    loss = said(content, "loss", float)
    if not abs(loss) <= LARGEST_LOSS:
        raise Rejected("its loss is NaN, infinite or beyond float32")
    new = unpack(content, "weights", {name: tuple(p.shape) for name, p in params.items()})
    before = {name: p.detach().cpu() for name, p in params.items()}
    moved, norm = _norm({n: new[n] - before[n] for n in new}), _norm(before)
    if moved > largest * max(norm, 1.0):
        raise Rejected(
            f"its update has norm {moved:.3g}, more than {largest:g} times that of the weights "
            f"({norm:.3g})"
        )
    sent = {}
    if shared is not None:
        sent = unpack(content, "sent", {name: tuple(t.shape) for name, t in shared.items()})
    return Update(now, new, loss, sent)


def _norm(params: Params) -> float:
    return math.sqrt(sum(float(p.double().square().sum()) for p in params.values()))
