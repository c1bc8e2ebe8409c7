"""A light task: made-up vectors of three classes, a small network, clients of different size."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedmix import Experiment, Federation
from fedmix.data import FederatedData, alone, from_arrays
from fedmix.flower import Task, client_app
from fedmix.flower.remote import Remote
from fedmix.flower.settings import Settings
from fedmix.training.engines import Sequential
from tests.flower.nodes import Nodes

SIZES = (23, 8, 30, 12)
CLASSES, WIDTH = 3, 6
EVERYONE = {"clients_per_round": 4, "batch_size": 5}
Array = np.ndarray[Any, Any]


def samples(client: int, count: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(100 + client)
    y = rng.integers(0, CLASSES, count)
    return (rng.standard_normal((count, WIDTH)) + y[:, None]).astype(np.float32), y


TEST = samples(99, 400)


def light(objective: Mapping[str, Any] | None = None, **changes: Any) -> Experiment:
    """An experiment; `changes` are sections or plain settings."""
    values: dict[str, Any] = {
        "data": {"name": "own"},
        "model": {"name": "mlp", "hidden": 5},
        "objective": dict(objective or {"name": "fedmix", "lam": 0.1}),
        "training": {
            "clients_per_round": 3,
            "epochs": 2,
            "batch_size": 5,
            "lr": 0.05,
            "momentum": 0.5,
        },
        "engine": {"name": "sequential"},
        "rounds": 3,
        "seed": 7,
    }
    return Experiment.of(values | changes)


def own(client: int, config: Mapping[str, Any]) -> FederatedData:
    """A client's samples: more of them where its node says so."""
    count = SIZES[client % len(SIZES)] + int(config.get("more", 0))
    return alone(*samples(client, count), classes=CLASSES)


def task(experiment: Experiment) -> Task:
    return Task.of(experiment, own, lambda _: alone(*TEST, classes=CLASSES))


def remote(experiment: Experiment, nodes: Nodes | None = None, **settings: Any) -> Remote:
    """A federation over nodes of this process."""
    agreed = task(experiment)
    nodes = nodes or Nodes(client_app(agreed), range(len(SIZES)))
    return Remote(
        nodes,
        agreed,
        Settings(**{"clients": len(SIZES), "join_timeout": 1.0, "timeout": 1.0, **settings}),
        {},
    )


def start(
    clients: int = 4, exchange: dict[str, Any] | None = None, **config: Any
) -> tuple[Nodes, Remote]:
    """A federation over so many nodes, whose configuration is `config`, all of them asked in every
    round.
    """
    experiment = light(exchange=exchange or {"m": 4}, training=EVERYONE, rounds=9)
    nodes = Nodes(client_app(task(experiment)), range(clients), **config)
    return nodes, remote(experiment, nodes, min_clients=clients)


def owners(real: Remote) -> list[int]:
    """How many means of each client are in the pool."""
    assert real.exchange is not None
    assert real.exchange.releases is not None
    return [int((real.exchange.releases.owner == k).sum()) for k in range(len(SIZES))]


def simulated(experiment: Experiment, **own: Any) -> Federation:
    """The same on one machine, with the sequential engine; `own` are a module and an objective."""
    parts = [samples(k, n) for k, n in enumerate(SIZES)]
    x, y = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    rows = np.split(np.arange(len(x)), np.cumsum(SIZES)[:-1])
    data = from_arrays(x, y, rows, TEST, classes=CLASSES)
    agreed = replace(task(experiment), **own)
    return Federation(
        agreed.module(data), data, agreed.objective, agreed.training, exchange=agreed.exchange,
        engine=Sequential(), seed=experiment.seed, updates=agreed.updates,
    )  # fmt: skip
