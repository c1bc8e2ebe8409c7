"""Released means of many clients as arrays, and the release of all clients at once."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedmix.core.types import Array
from fedmix.data.federated import FederatedData
from fedmix.data.ragged import Ragged
from fedmix.exchange.one_client import CHUNK, Means, average, noised, split
from fedmix.exchange.settings import Exchange

Streams = Callable[[Array], Iterator[np.random.Generator]]


class Releases(NamedTuple):
    """Released means of many clients, sorted by client. Never changed in place.

    `owner` (g,) is the client of each mean, `x` (g, ...) are mean inputs and `y` (g, C) mean label
    vectors.
    """

    owner: Array
    x: Tensor
    y: Tensor

    def __repr__(self) -> str:
        return f"Releases({len(self.x)} means of {len(np.unique(self.owner))} clients)"

    def of(self, client: int) -> Means:
        """Return the means of one client; empty if it sent none."""
        first, last = np.searchsorted(self.owner, [client, client + 1])
        return Means(self.x[first:last], self.y[first:last])

    def without(self, clients: Array) -> "Releases":
        """Return the means of all clients but these."""
        kept = np.flatnonzero(~np.isin(self.owner, clients))
        return Releases(self.owner[kept], self.x[kept], self.y[kept])

    @staticmethod
    def joined(parts: Sequence["Releases"]) -> "Releases":
        """Join several parts, which have no client in common, and sort them by client."""
        owner, x, y = (
            np.concatenate([p.owner for p in parts]),
            torch.cat([p.x for p in parts]),
            torch.cat([p.y for p in parts]),
        )
        if (np.diff(owner) >= 0).all():
            return Releases(owner, x, y)
        order = np.argsort(owner, kind="stable")
        return Releases(owner[order], x[order], y[order])


def release_all(
    clients: Array,
    data: FederatedData,
    how: Exchange,
    encode: Callable[[Array], Tensor],
    grouping: Streams,
    noise: Streams,
) -> list[Releases]:
    """Release the means of many clients, as `release` does for one, a block of clients at a time.

    Args:
        clients: The clients' numbers.
        data: The data of all clients.
        how: The settings of the exchange.
        encode: Turns stored samples into the tensor that is averaged.
        grouping: Returns a random generator for each of the given clients, to split its samples. It
            is called once, with those clients that are split.
        noise: The same for the noise, called with those clients that add noise.

    Returns:
        One part with the means of all clients that send any; no part if none does.
    """
    samples = data.clients.sizes
    senders = clients[samples[clients] >= how.cutoff]
    if not len(senders):
        return []
    sizes = how.group_sizes(samples[senders])
    splits = grouping(senders[samples[senders] >= 2 * sizes])
    noises = noise(senders if any(how.noises) else senders[:0])
    before = np.cumsum(samples[senders]) - samples[senders]
    cuts = np.flatnonzero(np.diff(before // CHUNK)) + 1
    # Allocated once: small results between large blocks would keep memory from being reused.
    room: Releases | None = None
    count = 0
    for block, size in zip(np.split(senders, cuts), np.split(sizes, cuts), strict=True):
        part = _release_block(block, size, data, how, encode, splits, noises)
        if room is None:
            most = int((samples[senders] // sizes).clip(1).sum())
            room = Releases(
                np.empty(most, np.int64),
                *(t.new_empty(most, *t.shape[1:]) for t in (part.x, part.y)),
            )
        here = slice(count, count + len(part.owner))
        room.owner[here], room.x[here], room.y[here] = part
        count = here.stop
    assert room is not None
    return [Releases(room.owner[:count], room.x[:count], room.y[:count])]


def _release_block(
    clients: Array,
    sizes: Array,
    data: FederatedData,
    how: Exchange,
    encode: Callable[[Array], Tensor],
    splits: Iterator[np.random.Generator],
    noises: Iterator[np.random.Generator],
) -> Releases:
    rows = data.clients.take(clients)
    x, y = data.x[rows.flat], data.labels(data.y[rows.flat])
    order, lengths = np.arange(len(rows.flat)), [[n] for n in rows.sizes.tolist()]
    for i in np.flatnonzero(rows.sizes >= 2 * sizes):
        mine = slice(rows.offsets[i], rows.offsets[i + 1])
        groups = split(y[mine], int(sizes[i]), how.split, next(splits))
        order[mine] = rows.offsets[i] + np.concatenate(groups)
        lengths[i] = [len(g) for g in groups]
    counts = [len(of_client) for of_client in lengths]
    means = noised(
        average(x, y, Ragged.cut(order, np.concatenate(lengths)), encode, how), counts, how, noises
    )
    return Releases(np.repeat(clients, counts), *means)
