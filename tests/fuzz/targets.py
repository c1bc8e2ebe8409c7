"""What fedmix reads from outside, each as a function of bytes.

Whatever they are, only a FedmixError may come of them.
"""

import struct
import tempfile
from collections.abc import Callable
from copy import copy
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import nn

from fedmix import Exchange, Federation, FedMix, Training
from fedmix.bench.results import read_steps, table
from fedmix.core.errors import BadInput, FedmixError
from fedmix.data import from_arrays
from fedmix.data.images import save_images
from fedmix.data.natural import save_owners
from fedmix.exchange import Means
from fedmix.experiment.presets import experiment
from fedmix.experiment.spec import Experiment
from fedmix.experiment.sweep import parse_setting
from fedmix.flower.ledger import Ledger
from fedmix.flower.policy import Policy
from fedmix.report import load_runs, results_of
from fedmix.runs.run import Run

if TYPE_CHECKING:
    from flwr.app import RecordDict

METRICS = (
    b'{"round": 1, "accuracy": 0.5, "loss": 1.5, "local_loss": 1.0, "seconds": 0.1, '
    b'"bytes_up": 10, "bytes_down": 10}\n'
)


@cache
def scratch() -> Path:
    """A folder that goes when the process does."""
    return Path(_kept.name)


_kept = tempfile.TemporaryDirectory(prefix="fedmix-fuzz-")


def _file(name: str, data: bytes) -> Path:
    path = scratch() / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


def toml(data: bytes) -> None:
    """An experiment file, read and written again."""
    spec = Experiment.load(_file("e.toml", data))
    assert Experiment.load(_file("again.toml", spec.toml().encode())) == spec


def setting(data: bytes) -> None:
    """A --set of the command line."""
    base = experiment("digits")
    for path, value in parse_setting(data.decode("utf-8", "replace")):
        base.with_settings({path: value})


@cache
def _spec() -> bytes:
    return experiment("digits").with_settings({"rounds": 2}).toml().encode()


def _reported(name: str, data: bytes) -> None:
    """A run folder with one file replaced as a table."""
    for each, content in (("experiment.toml", _spec()), ("metrics.jsonl", METRICS)):
        _file(f"run/{each}", content)
    for left in ("summary.json", "environment.json", "clients.json", "gallery.safetensors"):
        (scratch() / "run" / left).unlink(missing_ok=True)
    _file(f"run/{name}", data)
    runs = load_runs([scratch() / "run"])
    results_of(runs).numbers().csv()


def metrics(data: bytes) -> None:
    """metrics.jsonl."""
    _reported("metrics.jsonl", data)


def reported_toml(data: bytes) -> None:
    """experiment.toml, as a report reads it."""
    _reported("experiment.toml", data)


def summary(data: bytes) -> None:
    """summary.json, as a report and as a run reads it."""
    _reported("summary.json", data)
    Run(Experiment.load(scratch() / "run" / "experiment.toml"), scratch() / "run").finished()


def clients(data: bytes) -> None:
    """clients.json."""
    _reported("clients.json", data)


def environment(data: bytes) -> None:
    """environment.json."""
    _reported("environment.json", data)


def gallery(data: bytes) -> None:
    """gallery.safetensors."""
    _reported("gallery.safetensors", data)


def steps(data: bytes) -> None:
    """Results of a benchmark."""
    table(read_steps(_file("steps.json", data))).markdown()


@cache
def _federation() -> Federation:
    x, y = np.zeros((6, 2), np.float32), np.arange(6) % 2
    data = from_arrays(x, y, [[0, 1, 2], [3, 4, 5]], (x, y), classes=2)
    training = Training(clients_per_round=2)
    return Federation(
        nn.Sequential(nn.Linear(2, 2)),
        data,
        FedMix(lam=0.1),
        training,
        exchange=Exchange(clip=1.0, noise=1.0),
    )


def checkpoint(data: bytes) -> None:
    """A checkpoint, read into a federation that it may not fit."""
    folder = _file("saved/checkpoint.safetensors", data).parent
    run = Run(experiment("digits"), folder)
    saved = run.checkpoint.load()
    assert saved is not None
    federation = copy(_federation())
    federation.exchange = copy(federation.exchange)
    federation.restore(saved[0])
    federation._exchange_means(np.arange(2))  # which the next round begins with
    federation.evaluate()


def header(data: bytes) -> None:
    """The same with a header of its own and the content of a right one, so that lengths fit."""
    payload = b"\0" * 184  # as long as the corpus says
    checkpoint(struct.pack("<Q", len(data)) + data + payload)


def parquet(data: bytes) -> None:
    """A table of images with labels and owners."""
    path = _file("t.parquet", data)
    save_images([path], scratch(), "", "image", (2, 2, 1), "character", 3)
    save_owners([path], scratch(), "writer_id")


def image(data: bytes) -> None:
    """One encoded image of a table."""
    import pyarrow as pa

    from fedmix.data.images import pixels

    pixels(
        Path("t.parquet"),
        pa.array([{"bytes": data}], pa.struct([("bytes", pa.binary())])),
        (2, 2, 1),
    )


def policy(data: bytes) -> None:
    """A client's policy, and what it makes of a question."""
    Policy.load(_file("policy.toml", data)).applied(Exchange(m=4), 0, 50)


def releases(data: bytes) -> None:
    """The counts of what left clients."""
    Ledger(2, _file("releases.json", data))


# Messages, as Flower packs them: what a server reads of nodes, then what a client reads of the
# server


def content_of(data: bytes) -> "RecordDict":
    """What Flower makes of bytes; those of which it makes nothing never come to fedmix."""
    from flwr.common.serde import recorddict_from_proto
    from flwr.proto.recorddict_pb2 import RecordDict as Packed

    try:
        return recorddict_from_proto(Packed.FromString(data))
    except Exception as error:
        raise BadInput("Flower cannot read it") from error


def joining(data: bytes) -> None:
    """Who a node says it is, and what it refuses."""
    from fedmix.flower import refusals, wire

    content = content_of(data)
    assert (refusals.refused(content) or "").isprintable()
    assert wire.size(content) >= 0
    wire.holds(content)
    wire.Presence.read(content, 4)


def terms(data: bytes) -> None:
    """What a node has in common with the server."""
    from fedmix.flower.terms import Terms

    theirs = Terms.read(content_of(data))
    assert str(theirs).isprintable()
    theirs.check(theirs)


def means_sent(data: bytes) -> None:
    """A client's means."""
    from fedmix.flower import wire

    like = Means(torch.zeros(1, 6), torch.zeros(1, 3))
    means = wire.read_means(content_of(data), Exchange(m=4), 8, like, (10.0, 10.0), labels=True)
    assert means.x.shape == (2, 6)
    assert means.x.isfinite().all()


def update(data: bytes) -> None:
    """A client's weights."""
    from fedmix.flower import wire

    found = wire.read_update(
        content_of(data), 0, wire.Presence(0, 8, 1), 4, {"w": torch.zeros(2, 3)}, 10.0
    )
    assert found.params["w"].isfinite().all()


def masked(data: bytes) -> None:
    """A client's part of a secure sum."""
    from fedmix.flower.messages import Post
    from fedmix.flower.secagg_server import Group

    Group(cast(Post, None), 1.0, [(1,), (6,), (3,)])._check(content_of(data))


@cache
def _nodes(**exchange: Any) -> Any:
    from fedmix.flower import client_app
    from tests.flower.nodes import Nodes
    from tests.flower.tasks import light, task

    return Nodes(client_app(task(light(exchange=exchange))), [])


def _asked(kind: str, data: bytes, **exchange: Any) -> None:
    """Ask a client that has just started; what it refuses is raised."""
    from flwr.app import ConfigRecord, Context, Message, RecordDict

    from fedmix.flower import refusals, wire
    from fedmix.flower.sharing import HELD, POOL

    nodes, content = _nodes(**exchange), content_of(data)
    context = Context(1, 1, {"partition-id": 1}, RecordDict(), {})
    if kind == "train":
        pool = {"x": torch.zeros(2, 6), "y": torch.full((2, 3), 1 / 3)}
        context.state[POOL], context.state[HELD] = wire.pack(pool), ConfigRecord({"version": 1})
    refused = refusals.refused(
        nodes.app(Message(content, dst_node_id=1, message_type=kind), context).content
    )
    if refused is not None:
        assert "secure" in exchange or "its app failed" not in refused, (
            refused
        )  # Flower's code has no sentences
        raise BadInput(refused)


def asked_for_means(data: bytes) -> None:
    """A question for means."""
    _asked("query.means", data, m=4)


def asked_to_train(data: bytes) -> None:
    """Weights."""
    _asked("train", data, m=4)


def asked_to_keep_pool(data: bytes) -> None:
    """A pool."""
    _asked("query.pool", data, m=4)


def asked_for_sum(data: bytes) -> None:
    """A step of secure aggregation."""
    _asked("query.sum", data, m="all", average=2, clip=3.0, secure="secagg+")


TARGETS: dict[str, Callable[[bytes], None]] = {
    f.__name__: f
    for f in (
        toml, setting, metrics, reported_toml, summary, clients, environment, gallery, steps,
        checkpoint, header, parquet, image, policy, releases, joining, terms,
        means_sent, update, masked,
        asked_for_means, asked_to_train, asked_to_keep_pool, asked_for_sum,
    )
}  # fmt: skip


def hold(target: str, data: bytes) -> bool:
    """Whether these bytes were taken; False if they were refused in a sentence."""
    try:
        TARGETS[target](data)
    except FedmixError as error:
        said = str(error)
    else:
        return True
    assert said.isprintable(), said
    return False
