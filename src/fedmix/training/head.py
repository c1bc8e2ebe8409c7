"""A last step after training: the last layer in closed form, from statistics of the features.

Linear discriminant analysis on what the trained model says of every client's samples. Clients send
class counts, mean features by class and one shared scatter (exchange/statistics.py) and train
nothing. CCVR (Luo et al., NeurIPS 2021, "No Fear of Heterogeneity") is its sampled cousin.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedmix.core.errors import BadInput
from fedmix.core.rng import streams
from fedmix.core.types import Params
from fedmix.core.validation import number, whole
from fedmix.data.federated import FederatedData
from fedmix.exchange import Exchange, Traffic
from fedmix.exchange.settings import MOST_NOISE
from fedmix.exchange.statistics import LARGEST, Statistics, bounded, pooled, release
from fedmix.kernels.precision import arithmetic
from fedmix.models.functional import Model
from fedmix.models.last_layer import LastLayer
from fedmix.training.batches import Resident

CHUNK = 1000


@dataclass(frozen=True)
class Head:
    """The last layer from statistics: W = μΣ⁻¹, b = −½ diag(μΣ⁻¹μᵀ) + log π.

    μ are the classes' mean features, π their shares of all samples, and Σ = (1−s)·S + s·tr(S)/d·I
    is the features' covariance within classes S, shrunk by `shrinkage` s. `clip` bounds the norm of
    each sample's features, and `noise` is the standard deviation of the noise on every value that a
    client sends, which are means over its samples in units of that bound (docs/privacy.md). With
    noise, no eigenvalue of Σ is below the largest that the noise alone would have. Clients send
    after the last round, and with `since` also at every test from that round on.

    Raises:
        BadInput: A setting is outside its range, or there is noise without `clip`.
    """

    shrinkage: float = 0.1
    clip: float | None = None
    noise: float = 0.0
    since: int | None = None

    def __post_init__(self) -> None:
        if not 0 < number("head.shrinkage", self.shrinkage) <= 1:
            raise BadInput(
                f"head.shrinkage={self.shrinkage} must be above 0 and at most 1: without it, the "
                "covariance of few samples has no inverse"
            )
        if self.clip is not None and not 0 < number("head.clip", self.clip) < math.inf:
            raise BadInput(
                f"head.clip={self.clip} is a bound on a norm and must be positive and finite"
            )
        if not 0 <= number("head.noise", self.noise) <= MOST_NOISE:
            raise BadInput(
                f"head.noise={self.noise} is a deviation and must lie between 0 and {MOST_NOISE:g}"
            )
        if self.noise and self.clip is None:
            raise BadInput(
                f"head.noise={self.noise} is in units of head.clip, which is not set; give both"
            )
        if self.since is not None:
            whole("head.since", self.since)

    @property
    def exchange(self) -> Exchange:
        """The settings of the release: one mean a client."""
        return Exchange(clip=None if self.clip is None else LARGEST, noise=self.noise)

    def fits(self, rounds: int, evaluate_every: int) -> int:
        """Return how often clients send in a run of so many rounds.

        >>> Head(since=60).fits(80, 10), Head().fits(80, 10)
        (3, 1)
        """
        tested = {rounds, *range(evaluate_every, rounds + 1, evaluate_every)}
        return 1 if self.since is None else sum(r >= self.since or r == rounds for r in tested)

    def edge(self, samples: np.ndarray[tuple[int], np.dtype[np.int64]], features: int) -> float:
        """Largest eigenvalue that the noise alone gives the scatter over all samples, about.

        A symmetric matrix with deviation s beside its diagonal has eigenvalues up to 2s·√d
        (Wigner). Beside the diagonal s is σ/√2, times the norm of the clients' shares.
        """
        shares = samples / samples.sum()
        return float(np.linalg.norm(shares)) * self.noise * math.sqrt(2 * features)


@dataclass(frozen=True)
class Fitted:
    """A new last layer by the names of its parameters, and the bytes that it took."""

    params: Params
    traffic: Traffic


def discriminant(of: Statistics, shrinkage: float, least: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return W (C, d) and b (C,) of linear discriminant analysis.

    A class of less than one sample has the mean of all samples, and the share of half a sample.

    Args:
        of: The statistics.
        shrinkage: s.
        least: Least eigenvalue of Σ.

    >>> ones = torch.ones(1, dtype=torch.float64)
    >>> two = Statistics(torch.tensor([2.0, 2.0]), torch.tensor([[-2.0], [2.0]]), 8 * ones[None])
    >>> discriminant(two, 0.5)  # means -1 and 1, variance 8/4 - 1 = 1
    (tensor([[-1.],
            [ 1.]]), tensor([-1.1931, -1.1931]))
    """
    total = of.counts.clamp(min=0).sum().clamp(min=1)
    there = of.counts >= 1
    counts = torch.where(there, of.counts, 0.5)
    means = torch.where(
        there[:, None], of.sums / counts[:, None], of.sums[there].sum(0) / total
    ).double()
    shares = (torch.where(there, counts, 0.0) / total).double()
    within = of.scatter.double() / total - means.T @ (shares[:, None] * means)
    values, axes = torch.linalg.eigh(within)
    values = values.clamp(min=0)
    values = (1 - shrinkage) * values + shrinkage * values.mean()
    values = values.clamp(min=max(least, 1e-12))
    weight = means @ axes @ (axes / values).T
    bias = -0.5 * (weight * means).sum(1) + (counts / total).double().log()
    return weight.float(), bias.float()


def fit(
    head: Head, model: Model, params: Params, resident: Resident, seed: int, round_: int
) -> Fitted:
    """Let every client send its statistics, and return the last layer that follows from them.

    Args:
        head: The settings.
        model: The model.
        params: Its weights.
        resident: The clients' samples, where the weights are.
        seed: The seed of the run.
        round_: The round after which this is, for the noise.

    Raises:
        BadInput: The model has no last layer to set, or the data have no classes.
    """
    data, transform = resident.data, resident.data.transform
    rows, clients = data.clients.flat, len(data.clients)
    last = check(model, params, data)
    with arithmetic("float32"):
        parts = [
            last.features(params, transform.normalise(transform.units(resident.x[part])))
            for part in torch.split(torch.from_numpy(rows).to(resident.device), CHUNK)
        ]
    features = bounded(torch.cat(parts).float(), head.clip)
    labels, sizes = data.labels(data.y[rows]), data.clients.sizes
    released = release(
        features,
        labels,
        data.clients.cut(np.arange(len(rows)), sizes),
        head.exchange,
        streams(seed, "head-noise", np.arange(clients), round_),
    )
    statistics = pooled(released, sizes, features.shape[1])
    edge = head.edge(sizes, features.shape[1])
    weight, bias = discriminant(statistics, head.shrinkage, edge)
    new = {last.weight: weight / (head.clip or 1.0), last.bias: bias}
    encoder = sum(p.numel() for p in params.values()) - sum(p.numel() for p in new.values())
    return Fitted(
        {name: t.to(params[name]) for name, t in new.items()},
        Traffic(models_down=4 * encoder * clients, means_up=released.bytes),
    )


def check(model: Model, params: Params, data: FederatedData) -> LastLayer:
    """Return the model's last layer; raise BadInput if it cannot be set from statistics."""
    if data.classes is None:
        raise BadInput(
            f"{data.name} has no classes, and a head from statistics is a classifier; leave `head` "
            "out"
        )
    device = next(iter(params.values())).device
    return LastLayer(model, params, data.inputs(data.x[:2]).to(device))
