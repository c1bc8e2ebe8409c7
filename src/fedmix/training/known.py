"""Facts about clients besides their samples: label counts, sizes, and what they keep."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from fedmix.core.errors import BadInput
from fedmix.core.types import Batch, Params, each_field
from fedmix.objectives.base import ClientState
from fedmix.training.aggregation import Updates


class Known(NamedTuple):
    """The fields of a `Batch` that are the same in all steps of a client, for several clients.

    All but `shared` have a leading axis of clients. Fields that the objective does not need are
    None.
    """

    counts: Tensor | None = None
    samples: Tensor | None = None
    kept: Params | None = None
    shared: Params | None = None

    def of(self, clients: int | Tensor | list[int]) -> "Known":
        """Return the facts about some clients, by position; for an integer without the axis."""
        return each_field(lambda t: t[clients], self._replace(shared=None))._replace(
            shared=self.shared
        )

    def into(self, batch: Batch) -> Batch:
        """Return the batch with these fields set."""
        return batch._replace(**self._asdict())


class Memory:
    """What clients keep between rounds, and what the server shares with them.

    `kept` has an entry for each client that has taken part. `kept` and `shared` are replaced and
    never changed in place, so that a shallow copy is a snapshot.

    Args:
        how: How both change.
        params: The model's weights.
        clients: The number of all clients.
    """

    def __init__(self, how: ClientState, params: Params, clients: int) -> None:
        self.how, self.clients = how, clients
        self.fresh, self.shared = how.first(params)
        self.kept: dict[int, Params] = {}

    def of(self, clients: Iterable[int]) -> Params:
        """Return what these clients keep, stacked."""
        each = [self.kept.get(k, self.fresh) for k in clients]
        return {name: torch.stack([kept[name] for kept in each]) for name in self.fresh}

    def after(
        self, updates: Updates, anchor: Params, moved: Mapping[int, float]
    ) -> tuple[dict[int, Params], Params]:
        """Return what clients keep after their updates, by client, and what they send, stacked.

        Args:
            updates: The updates of some clients.
            anchor: The weights at the start of the round.
            moved: The argument `moved` of `ClientState.after`, by client.
        """
        by = torch.tensor([moved[k] for k in updates.clients], dtype=torch.float64)
        by = by.to(next(iter(anchor.values())))
        after = vmap(self.how.after, in_dims=(0, None, None, 0, 0))
        new, parts = after(self.of(updates.clients), self.shared, anchor, updates.params, by)
        kept = {
            k: {name: t[i].clone() for name, t in new.items()}
            for i, k in enumerate(updates.clients)
        }
        return kept, parts

    def take(self, kept: Sequence[Mapping[int, Params]], sent: Params) -> None:
        """Store what clients keep after a round, and add the sum of what they sent."""
        on = next(iter(self.shared.values())).device
        new = {k: {n: t.to(on) for n, t in own.items()} for part in kept for k, own in part.items()}
        self.kept = self.kept | dict(sorted(new.items()))
        self.add([{name: t.to(self.shared[name].dtype) for name, t in sent.items()}])

    def add(self, sent: Iterable[Params]) -> None:
        """Add what clients sent to what the server shares."""
        for part in sent:
            self.shared = {n: t + part[n] / self.clients for n, t in self.shared.items()}

    def state(self) -> Params:
        """Return everything as tensors, for a checkpoint."""
        saved = {f"shared.{name}": t.cpu() for name, t in self.shared.items()}
        if self.kept:
            saved |= {f"kept.{name}": t.cpu() for name, t in self.of(self.kept).items()}
        return saved | {"clients": torch.tensor(list(self.kept), dtype=torch.int64)}

    def restore(self, saved: Params) -> None:
        """Load what `state` returned.

        Raises:
            BadInput: It does not fit this memory.
        """
        clients = saved.get("clients", torch.zeros(0, dtype=torch.int64)).tolist()
        shapes = {f"shared.{name}": t.shape for name, t in self.shared.items()}
        if clients:
            shapes |= {
                f"kept.{n}": torch.Size([len(clients), *t.shape]) for n, t in self.fresh.items()
            }
        found = {name: t.shape for name, t in saved.items() if name != "clients"}
        if found != shapes or not all(0 <= k < self.clients for k in clients):
            raise BadInput("this state is damaged: what clients keep does not fit; start anew")
        where = next(iter(self.shared.values())).device
        self.shared = {name: saved[f"shared.{name}"].to(where) for name in self.shared}
        self.kept = {
            k: {name: saved[f"kept.{name}"][i].to(where) for name in self.fresh}
            for i, k in enumerate(clients)
        }
