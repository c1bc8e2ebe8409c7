"""Differencing attack: what two refreshes show of a sample that was replaced between them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedmix.core.types import Array
from fedmix.data.federated import FederatedData
from fedmix.privacy.audit.population import Population
from fedmix.privacy.audit.quality import psnr
from fedmix.privacy.audit.scene import Scene, refreshed, samples


@dataclass(frozen=True)
class Change:
    """One victim: its old and new sample, and the estimates of new − old by server and client."""

    old: Array
    new: Array
    server: Array
    client: Array

    def recovered(self, difference: Array) -> float:
        """PSNR of the new sample for an attacker who knows the old one and adds the difference."""
        return psnr(self.old + difference, self.new)


class Differencing(NamedTuple):
    """Median PSNR in dB of the new sample as the server and a client recover it.

    `unseen` is the PSNR of the old sample in its place. `changed` clients sent new means together,
    the fewest that the share `wait` allows; the server averages `average` means.
    """

    server: float
    client: float
    unseen: float
    average: int
    wait: float
    changed: int
    victims: int


def attack(
    scene: Scene, wait: float, victims: int, population: Population, rng: np.random.Generator
) -> list[Change]:
    """Change as many clients as `wait` requires and attack them, until there are enough victims.

    One sample of each is replaced by one of another client, if possible of a class that it has.
    """
    found: list[Change] = []
    while len(found) < victims:
        found += _refresh(scene, wait, victims - len(found), population, rng)
    return found


def clients_needed(data: FederatedData, wait: float) -> int:
    """Number of clients that must have changed until new means are sent."""
    everyone = len(data.clients)
    # the condition is that of the exchange
    return next(count for count in range(1, everyone + 1) if count / everyone >= wait)


def summary(changes: Sequence[Change], average: int, wait: float, changed: int) -> Differencing:
    """Medians over the victims."""

    def median(difference: Callable[[Change], Array]) -> float:
        return float(np.median([change.recovered(difference(change)) for change in changes]))

    seen = (
        median(lambda c: c.server),
        median(lambda c: c.client),
        median(lambda c: np.zeros_like(c.old)),
    )
    return Differencing(*seen, average, wait, changed, len(changes))


def _refresh(
    scene: Scene, wait: float, victims: int, population: Population, rng: np.random.Generator
) -> list[Change]:
    """Do one refresh and attack clients that sent new means in it."""
    data, senders = scene.data, rng.permutation(np.unique(scene.owner))
    changed = np.concatenate([senders, np.setdiff1d(np.arange(len(data.clients)), senders)])[
        : clients_needed(data, wait)
    ]
    rows, replaced = {}, {}
    for client in changed.tolist():
        mine = np.array(data.clients[client])
        foreign = np.setdiff1d(data.clients.flat, mine)
        alike = foreign[np.isin(data.y[foreign], data.y[mine])]
        new, position = rng.choice(alike if len(alike) else foreign), rng.integers(len(mine))
        replaced[client] = [mine[position], new]
        mine[position] = new
        rows[client] = mine
    after = refreshed(scene, data.with_clients(rows), changed, wait)
    found = []
    for victim in changed[: min(victims, len(senders))].tolist():
        old, new = samples(data, data.x[replaced[victim]], data.y[replaced[victim]], scene.how)[0]
        server = by_server(scene, after, victim, population)
        found.append(
            Change(old, new, server, by_client(scene, after, victim, len(changed), population))
        )
    return found


def by_server(before: Scene, after: Scene, victim: int, population: Population) -> Array:
    """Estimate the change as the server, who knows which client sent which means.

    It takes the sum of the victim's samples, new minus old.
    """
    (now, mine), (then, earlier) = (
        (scene.uploads, scene.owner == victim) for scene in (after, before)
    )
    difference = now.size[mine] @ now.x[mine] - then.size[earlier] @ then.x[earlier]
    return freed(difference, _noise(before, victim), 1, population)


def by_client(
    before: Scene, after: Scene, victim: int, changed: int, population: Population
) -> Array:
    """Estimate the change as a client, who knows the victim's classes and compares the pools.

    If each entry is one client's only mean, the victim's is compared with the nearest one of the
    old pool. Otherwise the sums of both pools show all changes together. Sums over entries of the
    victim's classes may show its change alone; they are used if they differ less.
    """
    noise, now, then = _noise(before, victim), after.pool, before.pool
    if before.how.average == 1 and len(before.groups) == len(np.unique(before.owner)):
        entry = int(np.flatnonzero(after.owner[after.entries.flat] == victim)[0])
        old = int(np.argmin(((then.x - now.x[entry]) ** 2).sum(1)))
        return freed(now.size[entry] * (now.x[entry] - then.x[old]), noise, 1, population)
    together = after.pool_total - before.pool_total
    if before.how.average == 1 and not before.how.noises[1]:
        foreign = ~np.isin(
            np.arange(before.data.outputs), before.data.y[before.data.clients[victim]]
        )
        a, b = ((view.y[:, foreign] <= 0).all(1) for view in (now, then))
        alone = now.size[a] @ now.x[a] - then.size[b] @ then.x[b]
        if np.linalg.norm(alone) < np.linalg.norm(together):
            return freed(alone, noise, 1, population)
    return freed(together, changed * noise, changed, population)


def freed(difference: Array, noise: float, changed: int, population: Population) -> Array:
    """The best linear estimate of one change, from the sum of `changed` of them and noise.

    `noise` is the variance of the noise.
    """
    single = 2 * population.variances
    return np.asarray(
        population.basis @ ((difference @ population.basis) * single / (changed * single + noise))
    )


def _noise(scene: Scene, client: int) -> float:
    """Variance of the noise on the difference of two sums of a client's samples."""
    return float(2 * (scene.groups.sizes[scene.owner == client] ** 2).sum() * scene.how.noise**2)
