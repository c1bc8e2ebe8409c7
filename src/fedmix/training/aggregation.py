"""The average of the clients' weights, weighted by their numbers of samples, or DP-FedAvg's."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedmix.core.rng import Noise
from fedmix.core.types import Params
from fedmix.training.dpfedavg import DPFedAvg

MOST = 2**24  # values that are clipped at a time, in float64


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


class Average:
    """The average of a round's clients, added up one chunk of updates at a time.

    It is Σ p_k w_k with p_k = n_k / Σ n, or what `rule` makes of the sum of clipped updates.

    Args:
        weights: The weights at the start of the round.
        samples: n_k, the number of samples of each of the round's clients.
        rule: DP-FedAvg, if it is to be its average.
    """

    def __init__(
        self, weights: Params, samples: Mapping[int, int], rule: DPFedAvg | None = None
    ) -> None:
        self.weights, self.samples, self.rule = weights, samples, rule
        self.sum, self.losses = Sum(weights), dict[int, float]()

    def add(self, chunk: Updates) -> None:
        """Add the updates of some clients, each client once."""
        if self.rule is None:
            self.sum.add(chunk.params, [self.samples[k] for k in chunk.clients])
        else:
            each = sum(w.numel() for w in self.weights.values())
            many = max(1, MOST // each)
            for i in range(0, len(chunk.clients), many):
                some = {name: t[i : i + many] for name, t in chunk.params.items()}
                clipped = self.rule.clipped(some, self.weights)
                self.sum.add(clipped, [1] * len(chunk.clients[i : i + many]))
        self.losses |= zip(chunk.clients, chunk.losses.tolist(), strict=True)

    def mean(self, trained: Collection[str], clients: int, noise: Noise) -> Params:
        """Return the average weights; arguments are those of `DPFedAvg.mean`."""
        if self.rule is None:
            return mean(self.sum.tensors, self.samples, self.weights)
        return self.rule.mean(self.sum.tensors, self.weights, trained, clients, noise)

    @property
    def loss(self) -> float:
        """Σ p_k loss_k."""
        return mean_loss(self.losses, self.samples)


def mean(sums: Params, samples: Mapping[int, int], like: Params) -> Params:
    """Return the mean of sums that are weighted by samples, in the types of `like`."""
    total = sum(samples.values())
    return {name: (t / total).to(like[name].dtype) for name, t in sums.items()}


def mean_loss(losses: Mapping[int, float], samples: Mapping[int, int]) -> float:
    """Return the mean loss, weighted by samples, added up in the order of `samples`."""
    total = sum(samples.values())
    return sum(n / total * losses[k] for k, n in samples.items())
