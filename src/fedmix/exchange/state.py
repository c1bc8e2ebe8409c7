"""The state of the exchange over the rounds of a run.

It knows which clients send again and when, which version of the pool each client holds, and the
bytes sent.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fedmix.core.errors import BadInput
from fedmix.core.reprs import counted
from fedmix.core.rng import stream, streams
from fedmix.core.types import Array
from fedmix.data.federated import FederatedData
from fedmix.exchange.all_clients import Releases, release_all
from fedmix.exchange.one_client import Means
from fedmix.exchange.pool import Pool, build, to_shares
from fedmix.exchange.settings import Exchange


@dataclass(frozen=True)
class Traffic:
    """Bytes that clients sent and received as weights and as means, in float32.

    `means_down` counts the pool once for every client that receives it. `pool` counts it once per
    version, as if it were broadcast: the paper's count for the exchange of one mean per client is
    `means_up + pool` = 2·N·d_i values.
    """

    models_up: int = 0
    models_down: int = 0
    means_up: int = 0
    means_down: int = 0
    pool: int = 0

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(
            *[a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)]
        )

    @property
    def up(self) -> int:
        """Bytes that clients sent."""
        return self.models_up + self.means_up

    @property
    def down(self) -> int:
        """Bytes that clients received."""
        return self.models_down + self.means_down


@dataclass
class MeanExchange:
    """The exchange of Algorithm 1, as state between rounds.

    `state` returns all of it as tensors, and `restore` loads it.

    `version` counts the pools that were built, `holds` is the version that each client holds,
    `epoch` counts the changes of each client's data, `sent` its releases. `smallest` is the
    smallest number of samples that a mean ever held (0: none yet), which the privacy accounting
    uses. `pending` are clients whose data changed since they last sent. Every field is replaced and
    never changed in place, so that a shallow copy is a snapshot and `state` needs no copies.
    """

    how: Exchange
    seed: int
    clients: int
    version: int = 0
    smallest: int = 0
    releases: Releases | None = None
    pool: Pool | None = None
    pending: frozenset[int] = frozenset()
    holds: Array = field(init=False)
    epoch: Array = field(init=False)
    sent: Array = field(init=False)

    def __post_init__(self) -> None:
        self.holds, self.epoch, self.sent = (np.zeros(self.clients, np.int64) for _ in range(3))

    def __repr__(self) -> str:
        held = "nothing sent yet" if self.pool is None else self.pool
        return f"MeanExchange({self.how}, {counted(self.clients, 'client')}: {held})"

    def changed(self, clients: Iterable[int]) -> None:
        """Note that the data of these clients changed."""
        now = frozenset(clients)
        self.epoch = self.epoch.copy()
        self.epoch[list(now)] += 1
        self.pending |= now

    def refresh(
        self, data: FederatedData, encode: Callable[[Array], Tensor], *, every_round: bool = False
    ) -> Traffic:
        """Let clients send the means that are due, and rebuild the pool if any were sent.

        Args:
            data: The clients' data.
            encode: Turns stored samples into the tensor that is averaged.
            every_round: Whether all clients send again now.

        Returns:
            The bytes that were sent.

        Raises:
            BadInput: These clients cannot meet the settings.
        """
        if self.version == 0 or every_round:
            due = np.arange(self.clients)
        elif self.pending and len(self.pending) / self.clients >= self.how.wait:
            due = np.array(sorted(self.pending))
        else:
            return Traffic()
        self.how.check(data.clients.sizes)
        return self.take(due, self._collect(data, encode, due), data)

    def take(self, due: Array, sent: Sequence[Releases], data: FederatedData) -> Traffic:
        """Replace the earlier releases of some clients by new ones, and rebuild the pool.

        Args:
            due: The clients that were asked to send.
            sent: What they sent.
            data: The clients' data, of which the labels and the transform matter.

        Returns:
            The bytes that were sent.
        """
        kept = [] if self.releases is None else [self.releases.without(due)]
        self.releases = Releases.joined([*kept, *sent])
        self.pending -= frozenset(due.tolist())
        self.version += 1
        self.pool = self._pool(data)
        if self.how.source != "pool":
            return Traffic()
        return Traffic(
            means_up=sum(Means(part.x, part.y).bytes for part in sent), pool=self.pool.bytes
        )

    def _collect(
        self, data: FederatedData, encode: Callable[[Array], Tensor], due: Array
    ) -> list[Releases]:
        """Return the releases of the clients that are due."""
        own = self.how.source == "own"
        # A client's own means do not leave it, so they need no cut-off, clipping or noise.
        how = Exchange(m=self.how.m, split=self.how.split) if own else self.how
        if self.how.source == "pool":
            sizes = data.clients.sizes[due]
            self.count(due[sizes >= how.cutoff], how.smallest_group(sizes))
        return release_all(
            due, data, how, encode,
            grouping=lambda clients: streams(self.seed, "split", clients, self.epoch[clients]),
            noise=lambda clients: streams(self.seed, "release-noise", clients, self.version),
        )  # fmt: skip

    def count(self, clients: Array, smallest: int) -> None:
        """Note a release of these clients, for the privacy accounting.

        Args:
            clients: The clients that release means.
            smallest: The number of samples in the smallest of these means; 0 if there is none.
        """
        sent = self.sent.copy()
        sent[clients] += 1
        self.count_at_least(sent, smallest)

    def count_at_least(self, sent: Array, smallest: int) -> None:
        """Raise each client's count of releases to `sent`, and lower `smallest` to this number.

        Counts that are higher stay, and so does a lower `smallest`; 0 means that no mean was
        released.
        """
        self.sent = np.maximum(self.sent, sent)
        self.smallest = min(filter(None, (self.smallest, smallest)), default=0)

    def _pool(self, data: FederatedData) -> Pool:
        assert self.releases is not None
        rng = stream(self.seed, "shuffle", self.version)
        if self.how.source == "own":
            return build(self.releases, 1, rng)
        # Secure sums are averages already.
        pool = build(self.releases, 1 if self.how.secure else self.how.average, rng)
        if self.how.source == "noise":
            labels = torch.full_like(pool.y, 1 / data.outputs if data.classes else 0.0)
            return Pool(data.transform.noise(tuple(pool.x.shape), rng), labels, pool.owners)
        if self.how.clip is not None and data.classes:
            return replace(pool, y=to_shares(pool.y))
        return pool

    def deliver(self, clients: Iterable[int]) -> Traffic:
        """Send the pool to those clients that do not hold the current version; return the bytes."""
        assert self.pool is not None
        lacking = [k for k in clients if self.holds[k] != self.version]
        self.holds = self.holds.copy()
        self.holds[lacking] = self.version
        travels = self.how.source == "pool"
        return Traffic(means_down=self.pool.bytes * len(lacking) if travels else 0)

    def lost(self, clients: Iterable[int]) -> None:
        """Note that these clients no longer hold any version of the pool."""
        self.holds = self.holds.copy()
        self.holds[list(clients)] = 0

    def entries_for(self, client: int) -> Array:
        """Return the pool's entries that a client may draw."""
        assert self.pool is not None
        return self.pool.entries_for(
            client, own=self.how.source == "own", exclude_own=self.how.exclude_own
        )

    def state(self) -> dict[str, Tensor]:
        """Return everything that later rounds depend on, as tensors."""
        saved = {
            "version": torch.tensor(self.version),
            "holds": torch.from_numpy(self.holds),
            "epoch": torch.from_numpy(self.epoch),
            "sent": torch.from_numpy(self.sent),
            "smallest": torch.tensor(self.smallest),
            "pending": torch.tensor(sorted(self.pending), dtype=torch.int64),
        }
        if self.releases is not None:
            saved |= {
                "owner": torch.from_numpy(self.releases.owner),
                "x": self.releases.x,
                "y": self.releases.y,
            }
        return saved

    def restore(self, saved: dict[str, Tensor], data: FederatedData) -> None:
        """Load what `state` returned, and rebuild the pool from it.

        Raises:
            BadInput: The state is damaged, or of another exchange.
        """
        if wrong := self._misfit(saved, data):
            raise BadInput(
                f"this state is damaged: its exchange has no fitting {wrong}; start anew"
            )
        self.version = int(saved["version"])
        self.holds, self.epoch = saved["holds"].numpy(), saved["epoch"].numpy()
        self.sent, self.smallest = saved["sent"].numpy(), int(saved["smallest"])
        self.pending = frozenset(saved["pending"].tolist())
        self.releases, self.pool = None, None
        if "owner" in saved:
            self.releases = Releases(saved["owner"].numpy(), saved["x"], saved["y"])
            self.pool = self._pool(data)

    def _misfit(self, saved: dict[str, Tensor], data: FederatedData) -> str:
        """Name the part of a state that is missing or does not fit; empty if all fit."""
        count, by_client = torch.Size([]), torch.Size([self.clients])
        shapes = dict.fromkeys(("holds", "epoch", "sent"), by_client) | {
            "version": count,
            "smallest": count,
            "pending": None,
        }
        for name, shape in shapes.items():
            value = saved.get(name)
            if (
                value is None
                or value.dtype != torch.int64
                or (value < 0).any()
                or shape not in (None, value.shape)
            ):
                return name
        owner, x, y = (saved.get(name) for name in ("owner", "x", "y"))
        if owner is None or x is None or y is None:
            return "" if owner is x is y is None and not saved["version"] else "releases"
        if (
            saved["pending"].ndim != 1
            or owner.ndim != 1
            or owner.dtype != torch.int64
            or not len(owner)
        ):
            return "owners"
        if any(
            len(of) and (int(of.min()) < 0 or int(of.max()) >= self.clients)
            for of in (owner, saved["pending"])
        ):
            return "owners"
        if (
            (owner.diff() < 0).any()
            or len(x) != len(owner)
            or y.shape != (len(owner), data.outputs)
        ):
            return "releases"
        return "" if x.dtype == y.dtype == torch.float32 and y.isfinite().all() else "releases"
