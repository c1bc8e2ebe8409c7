"""Every attack at every M and every noise, over seeds that deal the data out anew."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from fedmix.audit import differencing, labels, linking, membership, neighbours, reconstruction
from fedmix.audit.differencing import Change, Differencing
from fedmix.audit.labels import Labels
from fedmix.audit.linking import Linking
from fedmix.audit.neighbours import Neighbours
from fedmix.audit.population import Population
from fedmix.audit.rates import Rates, rates
from fedmix.audit.reconstruction import Attempt, Reconstruction
from fedmix.audit.scene import averaged, samples, stage
from fedmix.data.federated import FederatedData
from fedmix.data.transforms import Images
from fedmix.errors import BadInput
from fedmix.exchange.accounting import DELTA, Guarantee, calibrated, guarantee
from fedmix.exchange.settings import Exchange
from fedmix.rng import stream

Array = np.ndarray[Any, Any]
Size = int | float | Literal["all"]


class Noise(NamedTuple):
    """Noise of deviation σ, or, if `amount` is an ε, as much as that needs at each M."""

    amount: float
    is_epsilon: bool = False


@dataclass(frozen=True)
class Grid:
    """What is tried and how hard; `base` holds what stays the same in every exchange.

    The server's averaging is tried at 1 and at `average`, the rule to wait at 0 and at `wait`. `suspects` test samples at most
    stand for those who are not members, and never more than a third; the attackers learn from the rest.
    """

    base: Exchange = Exchange()
    sizes: Sequence[Size] = (1, 2, 5, 10, 50, "all")
    noises: Sequence[Noise] = (Noise(0.0),)
    average: int = 4
    wait: float = 0.25
    suspects: int = 2000
    trials: int = 10_000
    means: int = 20
    victims: int = 10
    delta: float = DELTA


@dataclass(frozen=True)
class Ground:
    """What one seed's attacks share: the data, what attackers learnt, and test rows that they know and that they do not."""

    seed: int
    data: FederatedData
    population: Population
    public: Array
    others: Array


@dataclass(frozen=True)
class Cell:
    """What every attack gave at one M and one noise. `together` is a client's attack where the server averages."""

    m: Size
    how: Exchange
    group: int
    guarantee: Guarantee
    server: Rates
    client: Rates
    together: Rates
    neighbours: Neighbours
    labels: Labels
    linking: Linking
    linking_together: Linking
    reconstruction: Reconstruction
    differencing: Sequence[Differencing]
    attempts: Sequence[Attempt]
    changes: Sequence[Change]


def audit(deal: Callable[[int], FederatedData], seeds: Sequence[int], grid: Grid, listen: Callable[[str], None]) -> Iterator[Cell]:
    """Attack; `deal` gives a seed's data, `listen` hears what begins, `steps(...)` times in all."""
    grounds = []
    for seed in seeds:
        listen(f"seed {seed}: learning from public data")
        grounds.append(ground(deal(seed), seed, grid))
    for size in grid.sizes:
        for noise in grid.noises:
            yield cell(grounds, size, noise, grid, listen)


def steps(seeds: int, grid: Grid) -> int:
    """How often `audit` calls `listen`."""
    return seeds * (1 + len(grid.sizes) * len(grid.noises))


def ground(data: FederatedData, seed: int, grid: Grid) -> Ground:
    """Divide the test samples and learn from those that are public."""
    if not isinstance(data.transform, Images) or data.classes is None:
        raise BadInput(
            f"{data.name} holds no pictures with classes, and these attacks are on means of such; "
            "choose digits, femnist, cifar10 or cifar100"
        )
    rows = stream(seed, "audit-suspects").permutation(len(data.test_x))
    count = min(grid.suspects, len(rows) // 3)
    others, public = rows[:count], rows[count:]
    x, _ = samples(data, data.test_x[public], data.test_y[public], grid.base)
    return Ground(seed, data, Population.learnt(x, data.test_y[public], data.classes), public, others)


def exchange(data: FederatedData, size: Size, noise: Noise, grid: Grid) -> tuple[Exchange, int]:
    """The exchange of one cell, and the fewest samples in one of its means. Clients with fewer than M samples send none."""
    cutoff = max(grid.base.cutoff, size) if isinstance(size, int) else grid.base.cutoff
    how = replace(grid.base, m=size, cutoff=cutoff, average=1, wait=0.0, source="pool")
    how.check(data.clients.sizes)
    sizes = data.clients.sizes[data.clients.sizes >= cutoff]
    group = int(how.group_sizes(sizes).min())
    if noise.is_epsilon:
        return calibrated(how, noise.amount, group, grid.delta), group
    return replace(how, noise=noise.amount), group


def cell(grounds: Sequence[Ground], size: Size, noise: Noise, grid: Grid, listen: Callable[[str], None]) -> Cell:
    """All attacks at one M and one noise."""
    scored: list[list[Array]] = [[], [], []]
    member, read, linked, linked_together, attempts = [], [], [], [], []
    changed: dict[tuple[int, float], list[Change]] = {}
    for g in grounds:
        how, group = exchange(g.data, size, noise, grid)
        listen(f"seed {g.seed}: M = {size}, σ = {how.noise:.3g}")
        rng = stream(g.seed, "audit")
        scene = stage(g.data, how, g.seed)
        together = averaged(scene, min(grid.average, len(scene.groups)))
        suspects = membership.candidates(scene, g.others, rng)
        alone = membership.scores(scene.uploads, suspects, g.population, scene.owner)
        mixed = membership.scores(together.pool, suspects, g.population)
        for into, score in zip(scored, (alone.client, alone.anybody, mixed.anybody), strict=True):
            into.append(score)
        member.append(suspects.member)
        if g is grounds[0]:
            first, least, told = how, group, neighbours.attack(scene, g.others[:500], grid.trials, grid.delta, rng)
        read.append(labels.attack(scene, rng))
        linked.append(linking.attack(scene, g.population, rng))
        linked_together.append(linking.attack(together, g.population, rng))
        for release in rng.permutation(len(scene.groups))[: -(-grid.means // len(grounds))].tolist():
            attempts.append(reconstruction.attempt(scene, release, g.public, g.population, rng))
        for wait in (0.0, grid.wait):
            for where in (scene, together):
                found = differencing.attack(where, wait, -(-grid.victims // len(grounds)), g.population, rng)
                changed.setdefault((where.how.average, wait), []).extend(found)
    is_member = np.concatenate(member)
    told_apart = [rates(s[is_member], s[~is_member]) for s in map(np.concatenate, scored)]
    needed = {wait: differencing.clients_needed(grounds[0].data, wait) for wait in (0.0, grid.wait)}
    return Cell(
        size,
        first,
        least,
        guarantee(first, least, grid.delta),
        *told_apart,
        told,
        Labels(*np.mean(read, axis=0).tolist()),
        Linking(*np.mean(linked, axis=0).tolist()),
        Linking(*np.mean(linked_together, axis=0).tolist()),
        reconstruction.summary(attempts, grounds[0].data.input_shape),
        [differencing.summary(found, average, wait, needed[wait]) for (average, wait), found in changed.items()],
        attempts,
        changed[1, 0.0],
    )
