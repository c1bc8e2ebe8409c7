"""Attack on owners: link entries of the pool, which carry no name, to clients.

Labels and known samples may identify the owners.
"""

from typing import NamedTuple

import numpy as np

from fedmix.core.types import Array
from fedmix.privacy.audit.membership import log_ratios
from fedmix.privacy.audit.population import Population, shares
from fedmix.privacy.audit.scene import Scene, View, samples

KNOWN = 5  # known samples of each client
ENTRIES = 1000  # most entries that are attacked
SMALLEST = 1e-6  # least proportion, for classes that a client does not have


class Linking(NamedTuple):
    """Shares of the entries that were linked to one of their owners.

    `labels` is for an attacker who knows each client's label proportions, `samples` for one who
    also knows five samples of each client. `chance` is a blind guess.
    """

    labels: float
    samples: float
    chance: float
    entries: int


def attack(scene: Scene, population: Population, rng: np.random.Generator) -> Linking:
    """Guess the owners of entries of the pool."""
    pool = scene.exchange.pool
    assert pool is not None
    chosen = rng.permutation(len(pool))[:ENTRIES]
    view, clients = View(*(part[chosen] for part in scene.pool)), np.unique(scene.owner)
    owned = np.stack([np.isin(clients, pool.owners[int(entry)]) for entry in chosen])
    by_labels = label_scores(view, _class_shares(scene, clients))
    off = population.off(view.x, view.y)
    by_samples = np.stack(
        [_sample_scores(scene, view, off, int(client), population, rng) for client in clients], 1
    )
    return Linking(
        top_one(by_labels, owned),
        top_one(by_labels + by_samples, owned),
        float(owned.mean()),
        len(chosen),
    )


def label_scores(view: View, of_clients: Array) -> Array:
    """Log likelihood of label means under the clients' label proportions (N, C): (g, N).

    It is multinomial, or normal if labels carry noise.
    """
    counted = view.size[:, None] * (view.y @ np.log(np.maximum(of_clients, SMALLEST)).T)
    squares = ((view.y[:, None] - of_clients) ** 2).sum(2)
    blurred = -squares / (2 * (view.label_noise**2 + 1 / view.size)[:, None])
    return np.asarray(np.where(view.label_noise[:, None] > 0, blurred, counted))


def top_one(score: Array, owned: Array) -> float:
    """Share of rows whose best column is one of their own; ties count by their share.

    >>> top_one(np.array([[2.0, 1.0], [1.0, 1.0]]), np.array([[True, False], [True, False]]))
    0.75
    """
    best = np.isclose(score, score.max(1, keepdims=True), rtol=1e-12, atol=1e-9)
    return float(((best & owned).sum(1) / best.sum(1)).mean())


def _sample_scores(
    scene: Scene,
    view: View,
    off: Array,
    client: int,
    population: Population,
    rng: np.random.Generator,
) -> Array:
    """Log likelihood ratio of each mean, (g,), if a few known samples of this client may be in it.

    Each is taken to be in a mean as often as any sample of the client.
    """
    data, rows = scene.data, scene.data.clients[client]
    known = rng.choice(rows, min(KNOWN, len(rows)), replace=False)
    x, y = samples(data, data.x[known], data.y[known], scene.how)
    ratios = log_ratios(
        off, view.size, view.noise, population.off(x, shares(y)), population.variances
    )
    absent = (view.y[:, data.y[known]] <= 0) & (view.label_noise[:, None] == 0)
    often = float(scene.groups.sizes[scene.owner == client].mean() / len(rows))
    with np.errstate(divide="ignore"):
        either = np.logaddexp(np.log1p(-often), np.log(often) + np.where(absent, -np.inf, ratios))
    return np.asarray(either.sum(1))


def _class_shares(scene: Scene, clients: Array) -> Array:
    counts = scene.data.class_counts()
    assert counts is not None
    return np.asarray(counts[clients] / counts[clients].sum(1, keepdims=True))
