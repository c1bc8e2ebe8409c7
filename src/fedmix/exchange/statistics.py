"""Statistics of features by class, which clients release as means of one vector a sample.

Of a sample with features h and class c, the vector is (e_c ⊗ h, hhᵀ), and its label vector is e_c.
A client's means of both, times its number of samples, are its sums of features by class, its
scatter and its class counts. The server adds these up: sums over clients are sums over all samples.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedmix.core.types import Array
from fedmix.data.ragged import Ragged
from fedmix.exchange.one_client import Means, average, noised
from fedmix.exchange.settings import Exchange

MOST = 2**24  # values that are averaged at a time
LARGEST = math.sqrt(3)  # norm of a sample's vector and label vector together, if ‖h‖ ≤ 1


class Statistics(NamedTuple):
    """Sums over samples: class counts (C,), features by class (C, d) and their scatter (d, d).

    Features are in units of the bound on their norm, if there is one.
    """

    counts: Tensor
    sums: Tensor
    scatter: Tensor


def bounded(features: Tensor, clip: float | None) -> Tensor:
    """Return features in units of the bound on their norm, and within it.

    Without a bound they stay as they are. NaN and infinity become 0 with one.
    """
    if clip is None:
        return features
    features = features.nan_to_num(0.0, 0.0, 0.0) / clip
    within: Tensor = features / features.norm(dim=1, keepdim=True).clamp(min=1)
    return within


def vectors(features: Tensor, labels: Tensor) -> Tensor:
    """Return (e_c ⊗ h, hhᵀ) of each sample, (n, C·d + d·(d+1)/2).

    Of hhᵀ, which is symmetric, it holds the upper triangle, times √2 beside the diagonal. So its
    norm stays ‖h‖².
    """
    n, d = features.shape
    row, column = torch.triu_indices(d, d, device=features.device)
    scale = torch.where(row == column, 1.0, math.sqrt(2.0)).to(features)
    by_class = labels[:, :, None].to(features) * features[:, None]
    return torch.cat([by_class.view(n, -1), features[:, row] * features[:, column] * scale], 1)


def release(
    features: Tensor, labels: Tensor, clients: Ragged, how: Exchange,
    noises: Iterator[np.random.Generator],
) -> Means:  # fmt: skip
    """Return what clients release: one mean of `vectors`, and one of label vectors, each.

    Args:
        features: Features of all samples.
        labels: Their label vectors.
        clients: The samples of each client, as positions in these.
        how: The settings of the exchange, of which the bound and the noise are used.
        noises: A random generator for each client, in order.
    """
    width = features.shape[1] * (labels.shape[1] + features.shape[1])  # or less

    def encode(rows: Array) -> Tensor:
        at = torch.from_numpy(rows)
        return vectors(features[at.to(features.device)], labels[at])

    rows = np.arange(len(features))
    most = max(1, MOST // width)
    return noised(
        average(rows, labels, clients, encode, how, most), [1] * len(clients), how, noises
    )


def pooled(released: Means, samples: Array, features: int) -> Statistics:
    """Return the statistics of all clients, from their releases and their numbers of samples."""
    n = torch.from_numpy(samples).double()
    x, y = released.x.double().cpu(), released.y.double().cpu()
    total, counts = n @ x, n @ y
    split = features * y.shape[1]
    row, column = torch.triu_indices(features, features)
    scatter = torch.zeros(features, features, dtype=torch.float64)
    scatter[row, column] = total[split:] / torch.where(row == column, 1.0, math.sqrt(2.0))
    return Statistics(counts, total[:split].view(-1, features), scatter + scatter.triu(1).T)
