"""The average of the clients' weights, weighted by their numbers of samples."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedmix.core.types import Params


class Updates(NamedTuple):
    """Results of the local updates of some clients.

    `params` are their weights, stacked in the order of `clients`; `losses` are their mean local
    losses.
    """

    clients: list[int]
    params: Params
    losses: Tensor


class Sum:
    """Σ n_k t_k for tensors t_k by name, in float64.

    Products of whole numbers and float32 are exact in float64, and as a rule so is their sum. Then
    no bit depends on the order of the clients, nor on how processes divide them.
    """

    def __init__(self, like: Params | None = None) -> None:
        self.tensors: Params = {
            name: torch.zeros_like(t, dtype=torch.float64) for name, t in (like or {}).items()
        }

    def add(self, stacked: Params, factors: Sequence[int]) -> None:
        """Add tensors that are stacked by client, each client's with its factor."""
        for name, rows in stacked.items():
            if name not in self.tensors:
                self.tensors[name] = torch.zeros_like(rows[0], dtype=torch.float64)
            for row, factor in zip(rows, factors, strict=True):
                self.tensors[name].add_(row, alpha=factor)


def average(updates: Iterable[Updates], samples: Mapping[int, int]) -> tuple[Params, float]:
    """Return Σ p_k w_k and Σ p_k loss_k with p_k = n_k / Σ n, one chunk of updates at a time.

    Args:
        updates: The updates of the round's clients, each client once.
        samples: n_k, the number of samples of each of these clients.
    """
    sums, losses, kinds = Sum(), dict[int, float](), Params()
    for chunk in updates:
        sums.add(chunk.params, [samples[k] for k in chunk.clients])
        losses |= zip(chunk.clients, chunk.losses.tolist(), strict=True)
        kinds = chunk.params
    return mean(sums.tensors, samples, kinds), mean_loss(losses, samples)


def mean(sums: Params, samples: Mapping[int, int], like: Params) -> Params:
    """Return the mean of sums that are weighted by samples, in the types of `like`."""
    total = sum(samples.values())
    return {name: (t / total).to(like[name].dtype) for name, t in sums.items()}


def mean_loss(losses: Mapping[int, float], samples: Mapping[int, int]) -> float:
    """Return the mean loss, weighted by samples, added up in the order of `samples`."""
    total = sum(samples.values())
    return sum(n / total * losses[k] for k, n in samples.items())
