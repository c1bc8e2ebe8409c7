"""Membership inference: was this sample among those averaged?

The attack is a likelihood ratio, by an attacker who knows the distribution of samples but not the
other samples. The mean of a group of M that holds z is normal around (expected mean) + (z - its
class's mean)/M, one that does not hold it around the expected mean. What is expected of the rest of
a group follows from its label mean.
"""

from typing import NamedTuple

import numpy as np

from fedmix.core.types import Array
from fedmix.data.federated import FederatedData
from fedmix.privacy.audit.population import FLOOR, Population
from fedmix.privacy.audit.scene import Scene, View, samples


class Candidates(NamedTuple):
    """Samples (n, d) with labels (n,) that may be in the data of one client each.

    `member` says whether they are.
    """

    x: Array
    label: Array
    client: Array
    member: Array


class Scores(NamedTuple):
    """Log likelihood ratio of each candidate, for anybody's data and for its client's.

    The latter is NaN if owners are not known.
    """

    anybody: Array
    client: Array


def candidates(scene: Scene, others: Array, rng: np.random.Generator) -> Candidates:
    """Sample the candidates: random samples of clients that send means, and test rows `others`.

    There are as many of the former as of the latter. A test row goes with its own client if test
    samples have one, else with a random client that has its class. Rows that equal a client's
    sample to the byte are left out: they are members, whatever the split says.
    """
    data, senders = scene.data, np.unique(scene.owner)
    owner = data.clients.owner
    ours = rng.permutation(np.flatnonzero(np.isin(owner, senders)))[: len(others)]
    rows = data.clients.flat[ours]
    used = {np.asarray(x).tobytes() for x in data.x[data.clients.flat]}
    fresh = np.array(
        [row for row in others if np.asarray(data.held_out.x[row]).tobytes() not in used], np.int64
    )
    theirs = _clients_of(data, fresh, senders, rng)
    kept = theirs >= 0
    x, label = (
        np.concatenate([data.x[rows], data.held_out.x[fresh[kept]]]),
        np.concatenate([data.y[rows], data.held_out.y[fresh[kept]]]),
    )
    client = np.concatenate([owner[ours], theirs[kept]])
    return Candidates(
        samples(data, x, label, scene.how)[0], label, client, np.arange(len(x)) < len(rows)
    )


def _clients_of(
    data: FederatedData, test_rows: Array, senders: Array, rng: np.random.Generator
) -> Array:
    """A client among `senders` for each test row; -1 if there is none."""
    if data.held_out.clients is not None:
        owner = np.empty(len(data.held_out.x), np.int64)
        owner[data.held_out.clients.flat] = data.held_out.clients.owner
        return np.where(np.isin(owner[test_rows], senders), owner[test_rows], -1)
    counts = data.class_counts()
    assert counts is not None
    holders = [senders[counts[senders, label] > 0] for label in range(data.outputs)]
    return np.array(
        [
            rng.choice(holders[label]) if len(holders[label]) else -1
            for label in data.held_out.y[test_rows]
        ],
        np.int64,
    )


def log_ratios(off: Array, size: Array, noise: Array, sample: Array, variances: Array) -> Array:
    """Log likelihood ratio (g, n) of mean i with sample j in it, against without.

    Both are given as their distance from what is expected, along the axes. Pictures differ in
    contrast, so each mean is scaled by a spread of its own: that of its distances, relative to what
    is expected of them.
    """
    found = np.empty((len(off), len(sample)))
    settings, which = np.unique(np.stack([size, noise]), axis=1, return_inverse=True)
    for index, (m, sigma) in enumerate(settings.T):
        rows = np.flatnonzero(which == index)
        inside = np.maximum(variances * (m - 1) / m**2 + sigma**2, FLOOR).astype(off.dtype)
        outside = np.maximum(variances / m + sigma**2, FLOOR).astype(off.dtype)
        squares = off[rows] ** 2
        spread = squares @ (1 / outside) / len(variances)
        by_mean = 0.5 * squares @ (1 / inside - 1 / outside)
        by_sample = 0.5 * (sample**2) @ (1 / inside) / m**2
        exponent = off[rows] @ (sample / (m * inside)).T - by_mean[:, None] - by_sample
        found[rows] = exponent / spread[:, None] + 0.5 * np.log(outside / inside).sum()
    return found


def scores(
    view: View, suspects: Candidates, population: Population, owner: Array | None = None
) -> Scores:
    """Score suspects, each of which is in one mean or in none, by the average ratio over means.

    A mean whose label excludes the suspect's class is left out, unless labels carry noise.
    """
    from scipy.special import logsumexp

    off = population.off(view.x, view.y)
    anybody, own = (
        np.full(len(suspects.x), -np.inf),
        np.full(len(suspects.x), -np.inf if owner is not None else np.nan),
    )
    for label in np.unique(suspects.label):
        which = np.flatnonzero(suspects.label == label)
        sample = (suspects.x[which] - population.means[label]) @ population.basis
        possible = np.flatnonzero((view.label_noise > 0) | (view.y[:, label] > 0))
        ratios = log_ratios(
            off[possible], view.size[possible], view.noise[possible], sample, population.variances
        )
        with np.errstate(divide="ignore"):
            anybody[which] = (
                logsumexp(ratios, axis=0) - np.log(len(off)) if len(possible) else -np.inf
            )
            if owner is not None and len(possible):
                mine = owner[possible, None] == suspects.client[which]
                counts = (owner[:, None] == suspects.client[which]).sum(0)
                own[which] = logsumexp(ratios, axis=0, b=mine) - np.log(counts)
    return Scores(anybody, own)
