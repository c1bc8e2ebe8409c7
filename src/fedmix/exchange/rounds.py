"""The exchange over the rounds of a run: who resends when, who still holds an old pool, and what all that costs in bytes."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmix.data.federated import FederatedData
from fedmix.exchange.means import Means, release
from fedmix.exchange.pool import Pool, build
from fedmix.exchange.settings import Exchange
from fedmix.rng import stream

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Traffic:
    """Bytes between server and clients, float32 values: what clients sent and received as weights and as means.

    `means_down` counts the pool once for every client that gets it. `pool` counts it once per version, as if it were
    broadcast: the paper's arithmetic for the exchange of one mean per client is `means_up + pool` = 2·N·d_i values.
    """

    models_up: int = 0
    models_down: int = 0
    means_up: int = 0
    means_down: int = 0
    pool: int = 0

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(*[a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)])

    @property
    def up(self) -> int:
        return self.models_up + self.means_up

    @property
    def down(self) -> int:
        return self.models_down + self.means_down


@dataclass
class MeanExchange:
    """Algorithm 1's exchange as state between rounds. All of it can be saved and put back (`state`, `restore`).

    `version` counts rebuilt pools, `holds` is the version that each client has, `epoch` counts changes of each client's data,
    `pending` are clients whose data changed since they last sent.
    """

    how: Exchange
    seed: int
    clients: int
    version: int = 0
    releases: dict[int, Means] = field(default_factory=dict)
    pool: Pool | None = None
    pending: set[int] = field(default_factory=set)
    holds: Array = field(init=False)
    epoch: Array = field(init=False)

    def __post_init__(self) -> None:
        self.holds, self.epoch = np.zeros(self.clients, np.int64), np.zeros(self.clients, np.int64)

    def __copy__(self) -> "MeanExchange":
        twin = replace(self, releases=dict(self.releases), pending=set(self.pending))
        twin.holds, twin.epoch = self.holds.copy(), self.epoch.copy()
        return twin

    def changed(self, clients: Iterable[int]) -> None:
        """Take note that the data of these clients changed."""
        for k in clients:
            self.epoch[k] += 1
            self.pending.add(k)

    def refresh(self, data: FederatedData, encode: Callable[[Array], Tensor], *, every_round: bool = False) -> Traffic:
        """Have clients send what is due and rebuild the pool if anything came. `every_round`: all of them, now."""
        if self.version == 0 or every_round:
            due = set(range(self.clients))
        elif self.pending and len(self.pending) / self.clients >= self.how.wait:
            due = set(self.pending)
        else:
            return Traffic()
        self.how.check(data.clients.sizes)
        sent = self._collect(data, encode, due)
        self.pending.clear()
        self.version += 1
        self.pool = self._pool(data)
        if self.how.source != "pool":
            return Traffic()
        return Traffic(means_up=sent, pool=self.pool.bytes)

    def _collect(self, data: FederatedData, encode: Callable[[Array], Tensor], due: set[int]) -> int:
        """Take the releases of the clients that are due; the bytes they sent."""
        own = self.how.source == "own"
        how = replace(self.how, cutoff=1, noise=0.0) if own else self.how  # own means never leave their client
        sent = 0
        for k in sorted(due):
            rows = data.clients[k]
            labels = data.targets(torch.from_numpy(np.ascontiguousarray(data.y[rows])))
            grouping = stream(self.seed, "split", k, int(self.epoch[k]))
            noise = stream(self.seed, "release-noise", k, self.version)
            means = release(k, data.x[rows], labels, how, encode, grouping, noise)
            self.releases.pop(k, None)
            if means is not None:
                self.releases[k] = means
                sent += means.bytes
        return sent

    def _pool(self, data: FederatedData) -> Pool:
        rng = stream(self.seed, "shuffle", self.version)
        if self.how.source == "own":
            return build(self.releases, 1, rng)
        pool = build(self.releases, self.how.average, rng)
        if self.how.source == "noise":
            labels = torch.full_like(pool.y, 1 / data.outputs if data.classes else 0.0)
            return Pool(data.transform.noise(tuple(pool.x.shape), rng), labels, pool.owners)
        return pool

    def deliver(self, clients: Iterable[int]) -> Traffic:
        """Send the pool to those of these clients that do not hold the current version."""
        assert self.pool is not None
        lacking = [k for k in clients if self.holds[k] != self.version]
        self.holds[lacking] = self.version
        travels = self.how.source == "pool"
        return Traffic(means_down=self.pool.bytes * len(lacking) if travels else 0)

    def entries_for(self, client: int) -> Array:
        """The pool's entries that a client may draw."""
        assert self.pool is not None
        return self.pool.entries_for(client, own=self.how.source == "own", exclude_own=self.how.exclude_own)

    def state(self) -> dict[str, Tensor]:
        """Everything that later rounds depend on, as tensors."""
        owners = sorted(self.releases)
        saved = {
            "version": torch.tensor(self.version),
            "holds": torch.from_numpy(self.holds.copy()),
            "epoch": torch.from_numpy(self.epoch.copy()),
            "pending": torch.tensor(sorted(self.pending), dtype=torch.int64),
        }
        if owners:
            saved["owner"] = torch.tensor([k for k in owners for _ in self.releases[k].x])
            saved["x"] = torch.cat([self.releases[k].x for k in owners])
            saved["y"] = torch.cat([self.releases[k].y for k in owners])
        return saved

    def restore(self, saved: dict[str, Tensor], data: FederatedData) -> None:
        """Put back what `state` gave; the pool follows from it."""
        self.version = int(saved["version"])
        self.holds, self.epoch = saved["holds"].numpy().copy(), saved["epoch"].numpy().copy()
        self.pending = set(saved["pending"].tolist())
        self.releases, self.pool = {}, None
        if "owner" in saved:
            for k in sorted(set(saved["owner"].tolist())):
                mine = saved["owner"] == k
                self.releases[k] = Means(saved["x"][mine], saved["y"][mine])
            self.pool = self._pool(data)
