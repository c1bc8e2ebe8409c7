"""The average of the clients' weights, weighted by their numbers of samples."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fedmix.core.types import Params


class Updates(NamedTuple):
    """Weights of some clients after their local updates, stacked in the order of `clients`, and
    their mean local losses.
    """

    clients: list[int]
    params: Params
    losses: Tensor


def average(updates: Iterable[Updates], samples: Mapping[int, int]) -> tuple[Params, float]:
    """Σ p_k w_k and Σ p_k loss_k with p_k = n_k / Σ n over the round's clients, one chunk of
    updates at a time.
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
