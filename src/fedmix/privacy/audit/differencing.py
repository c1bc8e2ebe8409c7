"""What changed? Two refreshes of data in which one sample of a client was replaced, and what their
difference shows of it.
"""

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
    """One victim: the sample that went, the one that came, and new minus old as the server and a
    client make it out.
    """

    old: Array
    new: Array
    server: Array
    client: Array

    def recovered(self, difference: Array) -> float:
        """The PSNR of the new sample to somebody who knew the old one and adds that difference to
        it.
        """
        return psnr(self.old + difference, self.new)


class Differencing(NamedTuple):
    """Median PSNR in dB of the new sample as the server and a client recover it, and as if it were
    the old one.

    `changed` clients sent anew together, the least that the share `wait` allows; the server
    averages `average` means.
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
    """Let as many clients change as `wait` asks for, each by one sample of another client and of a
    class it has; attack them.
    """
    found: list[Change] = []
    while len(found) < victims:
        found += _refresh(scene, wait, victims - len(found), population, rng)
    return found


def clients_needed(data: FederatedData, wait: float) -> int:
    """How many clients must have changed until new means are sent."""
    everyone = len(data.clients)
    return next(
        count for count in range(1, everyone + 1) if count / everyone >= wait
    )  # as the exchange has it


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
    """One refresh, and attacks on those who sent anew in it."""
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
    """The server knows whose means are whose: the sum of the victim's samples, new minus old."""
    (now, mine), (then, earlier) = (
        (scene.uploads, scene.owner == victim) for scene in (after, before)
    )
    difference = now.size[mine] @ now.x[mine] - then.size[earlier] @ then.x[earlier]
    return freed(difference, _noise(before, victim), 1, population)


def by_client(
    before: Scene, after: Scene, victim: int, changed: int, population: Population
) -> Array:
    """A client, who knows which classes the victim has, compares the pools.

    Where each entry is one client's only mean, the victim's goes with the nearest one of the old
    pool. Otherwise the sums of both pools show all changes together; sums over entries of the
    victim's classes may show its own alone, which is so if they differ less.
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
    """The best linear guess at one change, from the sum of `changed` of them and noise of that
    variance.
    """
    single = 2 * population.variances
    return np.asarray(
        population.basis @ ((difference @ population.basis) * single / (changed * single + noise))
    )


def _noise(scene: Scene, client: int) -> float:
    """The variance of the noise on the difference of two sums of a client's samples."""
    return float(2 * (scene.groups.sizes[scene.owner == client] ** 2).sum() * scene.how.noise**2)
