"""The average of the clients' weights, weighted by their numbers of samples."""

from collections.abc import Iterable, Mapping
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


def average(updates: Iterable[Updates], samples: Mapping[int, int]) -> tuple[Params, float]:
    """Return Σ p_k w_k and Σ p_k loss_k with p_k = n_k / Σ n, one chunk of updates at a time.

    Args:
        updates: The updates of the round's clients, each client once.
        samples: n_k, the number of samples of each of these clients.
    """
    total = sum(samples.values())
    weights: Params = {}
    loss = torch.zeros((), dtype=torch.float64)
    for chunk in updates:
        share = torch.tensor([samples[k] / total for k in chunk.clients], dtype=torch.float64)
        for name, stacked in chunk.params.items():
            part = torch.tensordot(share.to(stacked), stacked, 1)
            weights[name] = weights[name] + part if name in weights else part
        loss = loss.to(chunk.losses.device) + (share.to(chunk.losses.device) * chunk.losses).sum()
    return weights, float(loss)
