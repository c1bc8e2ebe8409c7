"""The server's pool of released means.

Each entry is the mean of `average` releases. Entries are shuffled, so that their position does not
tell whose they are.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedmix.core.errors import BadInput
from fedmix.core.types import Array
from fedmix.data.ragged import Ragged
from fedmix.exchange.all_clients import Releases
from fedmix.exchange.one_client import Means


@dataclass(frozen=True)
class Pool:
    """The entries (X_g, Y_g) of the pool.

    `owners` lists the clients that contributed to each entry. It stays with the server and is never
    sent.
    """

    x: Tensor
    y: Tensor
    owners: Ragged

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        return f"Pool({len(self)} means of shape {tuple(self.x.shape[1:])})"

    @property
    def bytes(self) -> int:
        """Size of the entries in bytes."""
        return Means(self.x, self.y).bytes

    @cached_property
    def _everything(self) -> Array:
        return np.arange(len(self))

    @cached_property
    def _by_owner(self) -> tuple[Array, Array]:
        """Contributing clients, sorted, and the entry of each contribution."""
        order = np.argsort(self.owners.flat, kind="stable")
        return self.owners.flat[order], self.owners.owner[order]

    def entries_for(self, client: int, *, own: bool = False, exclude_own: bool = False) -> Array:
        """Return the entries that a client may draw: by default all.

        Args:
            client: The client's number.
            own: Only entries to which it contributed.
            exclude_own: Only entries to which it did not contribute.

        Raises:
            BadInput: No entry is left.
        """
        if not own and not exclude_own:
            return self._everything
        owner, entry = self._by_owner
        first, last = np.searchsorted(owner, [client, client + 1])
        allowed = entry[first:last] if own else np.delete(self._everything, entry[first:last])
        if not len(allowed):
            raise BadInput(
                f"exchange: every entry of the pool holds data of client {client}, so exclude_own "
                "leaves it none; use more clients, a smaller average, or exclude_own=False"
            )
        return allowed


def build(releases: Releases, average: int, rng: np.random.Generator) -> Pool:
    """Shuffle all released means and average every `average` of them into one entry.

    The remainder joins the last entry. All means have the same weight, whatever the size of the
    client or of the group.

    Raises:
        BadInput: There are fewer means than `average`.
    """
    average, count = int(average), len(releases.owner)  # numpy's small integers overflow
    if average > count:
        raise BadInput(
            f"exchange.average={average} is more than the {count} means that clients released; "
            "lower it"
        )
    order = rng.permutation(count)
    owner, x, y = releases.owner[order], releases.x[order], releases.y[order]
    entry = np.minimum(np.arange(count) // average, count // average - 1)
    span = int(owner.max()) + 1
    # unique: each owner once per entry
    contributed, contributor = np.divmod(np.unique(entry * span + owner), span)
    owners = Ragged.cut(contributor, np.bincount(contributed))
    if average == 1:
        return Pool(x, y, owners)
    return Pool(_averaged(x, average), _averaged(y, average), owners)


def _averaged(values: Tensor, size: int) -> Tensor:
    full = (len(values) // size - 1) * size
    means = values[:full].view(-1, size, *values.shape[1:]).mean(1)
    return torch.cat([means, values[full:].mean(0, keepdim=True)])


def to_shares(y: Tensor) -> Tensor:
    """Project label vectors that clipping or noise has changed onto the probability simplex.

    Cross-entropy with a negative target has no lower bound. The projection is that of Duchi et al.
    (2008).
    """
    # The projection stays the same, and the largest value, 0, is kept however sums are rounded.
    y = y - y.max(1, keepdim=True).values
    high = y.sort(dim=1, descending=True).values
    excess = (high.cumsum(1) - 1) / torch.arange(1, y.shape[1] + 1, dtype=y.dtype, device=y.device)
    kept = (high > excess).sum(1, keepdim=True)
    return (y - excess.gather(1, kept - 1)).clamp(min=0)
