"""FedJAX: its federated averaging with a haiku model.

With several workers, clients are spread over as many host devices.
"""
# ruff: noqa: E402 - jax reads the environment as it is imported, so that comes first

import os
from collections.abc import Iterator
from functools import partial
from typing import Any

from measure import Job, job

JOB = job()
os.environ["JAX_PLATFORMS"] = JOB.device  # both are read when jax is imported
if JOB.threads:
    os.environ["XLA_FLAGS"] = (
        f"--xla_force_host_platform_device_count={JOB.workers} "
        f"--xla_cpu_multi_thread_eigen={str(JOB.threads > 1).lower()}"
    )

import jax

if not hasattr(jax, "tree_map"):  # JAX 0.6 removed it; FedJAX 0.0.17 calls it
    jax.tree_map = jax.tree_util.tree_map

import fedjax
import haiku as hk
import jax.numpy as jnp
import numpy as np
from fedjax.algorithms import fed_avg
from fedjax.core.for_each_client import ForEachClientPmapBackend, set_for_each_client_backend
from workload import Array, Workload

Params = dict[str, dict[str, Array]]


def lenet(x: jax.Array) -> jax.Array:
    x = hk.max_pool(jax.nn.relu(hk.Conv2D(6, 5)(x)), 2, 2, "VALID")
    x = hk.max_pool(jax.nn.relu(hk.Conv2D(16, 5, padding="VALID")(x)), 2, 2, "VALID")
    return hk.nets.MLP([120, 84, 62])(hk.Flatten()(x))


def vgg(x: jax.Array) -> jax.Array:
    for pair in ((32, 64), (128, 128), (256, 256)):
        for width in pair:
            x = jax.nn.relu(hk.Conv2D(width, 3)(x))
        x = hk.max_pool(x, 2, 2, "VALID")
    return hk.nets.MLP([512, 512, 10])(hk.Flatten()(x))


def lstm(x: jax.Array) -> jax.Array:
    x = hk.Linear(8, with_bias=False)(x)
    for _ in range(2):
        x = lstm_layer(x, 256)
    return hk.Linear(84)(x[:, -1])


def lstm_layer(x: jax.Array, size: int) -> jax.Array:
    """An LSTM with PyTorch's gates and one bias; `hk.LSTM` adds 1 to its forget gate."""
    gates, recurrent = hk.Linear(4 * size)(x), hk.Linear(4 * size, with_bias=False)

    def step(state: tuple[jax.Array, jax.Array], now: jax.Array) -> tuple[Any, jax.Array]:
        h, c = state
        i, f, g, o = jnp.split(now + recurrent(h), 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zeros = jnp.zeros((len(x), size))
    _, hidden = hk.scan(step, (zeros, zeros), gates.swapaxes(0, 1))
    return hidden.swapaxes(0, 1)


class Client:
    """The part of a client data set that fed_avg uses.

    Pictures are (H, W, C), as XLA and haiku want them.
    """

    def __init__(self, x: Array, y: Array, rows: Array) -> None:
        self.x, self.y, self.rows = x, y, rows

    def __len__(self) -> int:
        return len(self.x)

    def shuffle_repeat_batch(
        self, _: fedjax.ShuffleRepeatBatchHParams
    ) -> Iterator[dict[str, Array]]:
        for rows in self.rows:
            yield {"x": self.x[rows], "y": self.y[rows]}


def first_full(work: Workload) -> tuple[int, int, int]:
    """Shape (C, H, W) of the pictures that the first linear layer takes."""
    channels = [p[0] for p in work.parts if len(p) == 4][-1]
    full = next(p for p in work.parts if len(p) == 2)
    side = round((full[1] // channels) ** 0.5)
    return channels, side, side


def places(work: Workload, like: Params) -> list[tuple[str, str]]:
    """Layer and part of each parameter, in PyTorch's order."""
    if work.name != "lstm":
        return [(layer, part) for layer in like for part in "wb"]
    embedding, *rest, head = like
    pairs = zip(rest[::2], rest[1::2], strict=True)
    return [
        (embedding, "w"),
        *(place for x, h in pairs for place in ((x, "w"), (h, "w"), (x, "b"))),
        (head, "w"),
        (head, "b"),
    ]


def to_haiku(work: Workload, arrays: list[Array], like: Params) -> Params:
    """Convert weights from PyTorch's layout to haiku's.

    (O, I, H, W) becomes (H, W, I, O), (O, I) becomes (I, O), and a flat picture (C, H, W) becomes
    (H, W, C). An embedding is the same in both.
    """
    flattened = work.name != "lstm"
    result: Params = {layer: {} for layer in like}
    for (layer, part), w in zip(places(work, like), arrays, strict=True):
        if w.ndim == 4:
            w = w.transpose(2, 3, 1, 0)
        elif w.ndim == 2 and not (work.name == "lstm" and layer == next(iter(like))):
            if flattened:
                picture = w.reshape(-1, *first_full(work)).transpose(0, 2, 3, 1)
                w, flattened = picture.reshape(w.shape), False
            w = w.T
        assert w.shape == like[layer][part].shape
        result[layer][part] = w
    return result


def to_torch(work: Workload, params: Params) -> list[Array]:
    """Convert weights from haiku's layout to PyTorch's."""
    flattened, result = work.name != "lstm", []
    for layer, part in places(work, params):
        w = np.asarray(params[layer][part])
        if w.ndim == 4:
            w = w.transpose(3, 2, 0, 1)
        elif w.ndim == 2 and not (work.name == "lstm" and layer == next(iter(params))):
            w = w.T
            if flattened:
                c, h, v = first_full(work)
                w, flattened = w.reshape(-1, h, v, c).transpose(0, 3, 1, 2).reshape(w.shape), False
        result.append(w)
    return result


def main(job: Job) -> None:
    work = job.workload
    if job.workers > 1:
        # FedJAX expects shards without the axis of devices
        jax.config.update("jax_pmap_no_rank_reduction", False)
        set_for_each_client_backend(ForEachClientPmapBackend())
    x, y = work.data()
    if x.ndim == 5:
        x = np.ascontiguousarray(x.transpose(0, 1, 3, 4, 2))
    forward = {"lenet": lenet, "vgg": vgg, "lstm": lstm}[work.name]
    model = fedjax.create_model_from_haiku(
        hk.transform(lambda batch: forward(batch["x"])),
        sample_batch={"x": x[0, :1], "y": y[0, :1]},
        train_loss=lambda batch, logits: fedjax.metrics.unreduced_cross_entropy_loss(
            batch["y"], logits
        ),
    )
    algorithm = fed_avg.federated_averaging(
        fedjax.model_grad(model),
        fedjax.optimizers.sgd(work.lr, momentum=work.momentum),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(work.batch, num_epochs=work.epochs),
    )
    key = jax.random.PRNGKey(0)
    state = algorithm.init(jax.device_put(to_haiku(work, work.initial(), model.init(key))))
    job.start()
    for round_ in range(job.total):
        clients = [(k, Client(x[k], y[k], work.rows(round_, k)), key) for k in work.chosen(round_)]
        state, _ = algorithm.apply(state, clients)
        jax.block_until_ready(state.params)
        job.tick(partial(to_torch, work, state.params))
    job.save(
        "fedjax",
        to_torch(work, state.params),
        ["fedjax", "jax", "jaxlib", "dm-haiku", "optax", "numpy"],
    )


if __name__ == "__main__":
    main(JOB)
