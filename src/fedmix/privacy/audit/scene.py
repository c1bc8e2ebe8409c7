"""One simulated exchange: what each attacker sees of it, and the truth that the audit knows."""

from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch

from fedmix.core.rng import stream
from fedmix.core.types import Array
from fedmix.data.federated import FederatedData
from fedmix.data.ragged import Ragged
from fedmix.exchange import Exchange, MeanExchange
from fedmix.exchange.one_client import clipped, split


class View(NamedTuple):
    """Means as an attacker sees them: inputs (g, d) and labels (g, C).

    `size` is the number of samples in each, `noise` and `label_noise` the deviations of the noise.
    """

    x: Array
    y: Array
    size: Array
    noise: Array
    label_noise: Array


@dataclass(frozen=True)
class Scene:
    """An exchange after its first refresh.

    `groups` are the rows behind each release, `entries` the releases behind each entry of the pool.
    Attackers know neither, but all know how many samples are in a mean.
    """

    data: FederatedData
    how: Exchange
    exchange: MeanExchange
    groups: Ragged
    entries: Ragged

    @property
    def owner(self) -> Array:
        """The client behind each release, which the server knows of its uploads."""
        assert self.exchange.releases is not None
        return self.exchange.releases.owner

    @cached_property
    def uploads(self) -> View:
        """What the server receives."""
        assert self.exchange.releases is not None
        _, x, y = self.exchange.releases
        return _view(x, y, self.groups.sizes, np.ones(len(x)), self.how)

    @cached_property
    def pool(self) -> View:
        """What every client receives: shuffled, and averaged if the exchange says so."""
        assert self.exchange.pool is not None
        sizes = np.add.reduceat(self.groups.sizes[self.entries.flat], self.entries.offsets[:-1])
        return _view(
            self.exchange.pool.x, self.exchange.pool.y, sizes, self.entries.sizes, self.how
        )

    @cached_property
    def pool_total(self) -> Array:
        """The sum of all samples in the pool.

        If several means are averaged, all are taken to be of the same size, so that clients that do
        not change contribute equally to every sum.
        """
        weights = (
            self.pool.size
            if self.how.average == 1
            else self.entries.sizes * self.groups.sizes.mean()
        )
        return np.asarray(weights.astype(np.float64) @ self.pool.x)


def stage(data: FederatedData, how: Exchange, seed: int) -> Scene:
    """Run an exchange of these clients once."""
    exchange = MeanExchange(how, seed, len(data.clients))
    exchange.refresh(data, data.units)
    return _scene(data, how, exchange)


def averaged(scene: Scene, average: int) -> Scene:
    """The same releases, with the server averaging that many."""
    how = replace(scene.how, average=average)
    exchange = copy(scene.exchange)
    exchange.how = how
    exchange.restore(scene.exchange.state(), scene.data)
    return replace(scene, how=how, exchange=exchange, entries=_entries(exchange, len(scene.groups)))


def refreshed(scene: Scene, data: FederatedData, changed: Array, wait: float) -> Scene:
    """The exchange after these clients' data changed; unchanged if `wait` makes them hold back."""
    exchange = copy(scene.exchange)
    exchange.how = replace(scene.how, wait=wait)
    exchange.changed(changed.tolist())
    exchange.refresh(data, data.units)
    if exchange.version == scene.exchange.version:
        return scene
    return _scene(data, scene.how, exchange)


def _scene(data: FederatedData, how: Exchange, exchange: MeanExchange) -> Scene:
    groups = Ragged.of(
        group for client in range(len(data.clients)) for group in groups_of(data, exchange, client)
    )
    return Scene(data, how, exchange, groups, _entries(exchange, len(groups)))


def groups_of(data: FederatedData, exchange: MeanExchange, client: int) -> list[Array]:
    """The rows of a client's samples in each mean that it sends, drawn as the client draws them."""
    rows, how = data.clients[client], exchange.how
    if len(rows) < how.cutoff:
        return []
    labels = data.labels(data.y[rows])
    rng = stream(exchange.seed, "split", client, int(exchange.epoch[client]))
    return [
        rows[group] for group in split(labels, how.group_size(client, len(rows)), how.split, rng)
    ]


def samples(data: FederatedData, x: Array, y: Array, how: Exchange) -> tuple[Array, Array]:
    """Raw samples as vectors (n, d) with label vectors (n, C), in units and clipped.

    That is the form in which they are averaged.
    """
    inputs, labels = clipped(data.units(x).double(), data.labels(y).double(), how)
    return inputs.flatten(1).float().numpy(), labels.numpy()


def _entries(exchange: MeanExchange, releases: int) -> Ragged:
    """The releases in each entry of the pool, shuffled and cut as the server does."""
    order = stream(exchange.seed, "shuffle", exchange.version).permutation(releases)
    count = releases // exchange.how.average
    sizes = np.full(count, exchange.how.average)
    sizes[-1] += releases - sizes.sum()
    return Ragged.cut(order, sizes)


def _view(x: torch.Tensor, y: torch.Tensor, size: Array, together: Array, how: Exchange) -> View:
    noise, label_noise = (sigma / np.sqrt(together) for sigma in how.noises)
    return View(x.flatten(1).numpy(), y.double().numpy(), size, noise, label_noise)
