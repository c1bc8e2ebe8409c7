"""What the server makes of the releases: a pool in which position tells no owner, each entry a mean of `average` releases."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmix.data.federated import Ragged
from fedmix.errors import BadInput
from fedmix.exchange.means import Means

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Pool:
    """The entries (X_g, Y_g). `owners` lists who contributed to each entry; it stays with the server and is never sent."""

    x: Tensor
    y: Tensor
    owners: Ragged

    def __len__(self) -> int:
        return len(self.x)

    @property
    def bytes(self) -> int:
        return Means(self.x, self.y).bytes

    def entries_for(self, client: int, *, own: bool = False, exclude_own: bool = False) -> Array:
        """The entries that a client may draw: all, only its own, or all but those it contributed to."""
        if not own and not exclude_own:
            return np.arange(len(self))
        entry = np.repeat(np.arange(len(self)), self.owners.sizes)
        mine = np.zeros(len(self), bool)
        mine[entry[self.owners.flat == client]] = True
        allowed = np.flatnonzero(mine if own else ~mine)
        if not len(allowed):
            raise BadInput(
                f"exchange: every entry of the pool holds data of client {client}, so exclude_own leaves it none; "
                "use more clients, a smaller average, or exclude_own=False"
            )
        return allowed


def build(releases: Mapping[int, Means], average: int, rng: np.random.Generator) -> Pool:
    """Shuffle all released means and average every `average` of them; what is left over joins the last entry.

    Released means are averaged with equal weights, whatever the size of the client or of the group behind each.
    """
    clients = sorted(releases)
    x, y = torch.cat([releases[k].x for k in clients]), torch.cat([releases[k].y for k in clients])
    owner = np.repeat(clients, [len(releases[k].x) for k in clients])
    if average > len(x):
        raise BadInput(f"exchange.average={average} is more than the {len(x)} means that clients released; lower it")
    order = rng.permutation(len(x))
    groups = np.split(order, np.arange(1, len(x) // average) * average)
    if average > 1:
        x, y = (torch.stack([t[g].mean(0) for g in groups]) for t in (x, y))
    else:
        x, y = x[order], y[order]
    return Pool(x, y, Ragged.of([np.unique(owner[g]) for g in groups]))
