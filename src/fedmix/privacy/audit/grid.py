"""Runs every attack at every M and every noise, over seeds that partition the data anew."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import NamedTuple

import numpy as np

from fedmix.core.errors import BadInput
from fedmix.core.rng import stream
from fedmix.core.types import Array
from fedmix.data.federated import FederatedData
from fedmix.data.transforms import Images
from fedmix.exchange.settings import Exchange, GroupSize
from fedmix.privacy.accounting import DELTA, Guarantee, calibrated, guarantee, nonnegative
from fedmix.privacy.audit import (
    differencing,
    labels,
    linking,
    membership,
    neighbours,
    reconstruction,
)
from fedmix.privacy.audit.differencing import Change, Differencing
from fedmix.privacy.audit.labels import Labels
from fedmix.privacy.audit.linking import Linking
from fedmix.privacy.audit.neighbours import Neighbours
from fedmix.privacy.audit.population import Population
from fedmix.privacy.audit.rates import CONFIDENCE, Rates, rates
from fedmix.privacy.audit.reconstruction import Attempt, Reconstruction
from fedmix.privacy.audit.scene import averaged, samples, stage

PAIRS = 500  # test samples among which the worst neighbour is sought
INTERVALS = 9  # per setting: AUC and share found of four attackers, and the ε shown


class Noise(NamedTuple):
    """Noise of deviation σ = `amount`; if `is_epsilon`, as much as ε = `amount` needs at each M."""

    amount: float
    is_epsilon: bool = False


@dataclass(frozen=True)
class Grid:
    """Settings and effort of an audit.

    Averaging by the server is tried with 1 and with `average` means, the rule to wait with 0 and
    with `wait`.

    Args:
        base: Settings that all exchanges share.
        sizes: Numbers M of samples in a mean.
        noises: Amounts of noise.
        average: Number of means that the server averages, at least 2.
        wait: Share of clients that must have changed before new means are sent.
        suspects: Largest number of test samples that serve as non-members, and never more than a
            third; the attackers learn from the rest.
        trials: Number of releases in the attack on neighbours.
        means: Number of means in the attack on pictures.
        victims: Number of victims of the differencing attack.
        delta: δ of the guarantees.

    Raises:
        BadInput: The settings are no valid exchange, or `average` is below 2.
    """

    base: Exchange = field(default_factory=Exchange)
    sizes: Sequence[GroupSize] = (1, 2, 5, 10, 50, "all")
    noises: Sequence[Noise] = (Noise(0.0),)
    average: int = 4
    wait: float = 0.25
    suspects: int = 2000
    trials: int = 10_000
    means: int = 10
    victims: int = 10
    delta: float = DELTA

    def __post_init__(self) -> None:
        replace(self.base, average=self.average, wait=self.wait)  # raises BadInput
        if self.average < 2:
            raise BadInput(
                f"average={self.average}: what averaging by the server changes is seen from 2 on"
            )

    @property
    def confidence(self) -> float:
        """Confidence of one interval, so that all intervals of an audit hold together with 95 %.

        This is Bonferroni's correction.
        """
        return 1 - (1 - CONFIDENCE) / (INTERVALS * len(self.sizes) * len(self.noises))


@dataclass(frozen=True)
class Ground:
    """What the attacks of one seed share.

    `population` is what attackers learnt from the test rows `public`; the test rows `others` are
    unknown to them.
    """

    seed: int
    data: FederatedData
    population: Population
    public: Array
    others: Array


@dataclass(frozen=True)
class Attacked:
    """Results of all attacks at one M and one noise.

    `together` is a client's attack where the server averages. `differencing` has four entries:
    without and with averaging by the server, then both again where clients wait for each other.
    """

    m: GroupSize
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


def audit(
    deal: Callable[[int], FederatedData],
    seeds: Sequence[int],
    grid: Grid,
    listen: Callable[[str], None],
) -> Iterator[Attacked]:
    """Run all attacks; yield the results at each M and noise.

    Args:
        deal: Function from a seed to its data.
        seeds: Seeds of the partitions.
        grid: Settings and effort.
        listen: Function that is told what begins, `steps(...)` times in all.

    Raises:
        BadInput: The data cannot be attacked, or its clients cannot meet the settings.
    """
    dealt = {seed: deal(seed) for seed in seeds}
    for data in dealt.values():
        check(data, grid)
    grounds = []
    for seed, data in dealt.items():
        listen(f"seed {seed}: learning from public data")
        grounds.append(ground(data, seed, grid))
    for size in grid.sizes:
        for noise in grid.noises:
            yield cell(grounds, size, noise, grid, listen)


def steps(seeds: int, grid: Grid) -> int:
    """Number of times that `audit` calls `listen`."""
    return seeds * (1 + len(grid.sizes) * len(grid.noises))


def check(data: FederatedData, grid: Grid) -> None:
    """Raise BadInput for data that cannot be attacked, or settings that its clients cannot meet.

    This is done before hours are spent.
    """
    if not isinstance(data.transform, Images) or data.classes is None:
        raise BadInput(
            f"{data.name} holds no pictures with classes, which these attacks need; use data with "
            "`Images` and `classes`"
        )
    if len(data.clients) < 2:
        raise BadInput(
            f"{data.name} has one client, and who owns a mean is no question then; use at least 2 "
            "(data.clients)"
        )
    for size, noise in product(grid.sizes, grid.noises):
        promise(data, exchange(data, size, noise, grid), grid)


def ground(data: FederatedData, seed: int, grid: Grid) -> Ground:
    """Divide the test samples and learn from those that are public."""
    rows = stream(seed, "audit-suspects").permutation(len(data.held_out.x))
    count = min(grid.suspects, len(rows) // 3)
    others, public = rows[:count], rows[count:]
    x, _ = samples(data, data.held_out.x[public], data.held_out.y[public], grid.base)
    return Ground(
        seed, data, Population.learnt(x, data.held_out.y[public], data.outputs), public, others
    )


def exchange(data: FederatedData, size: GroupSize, noise: Noise, grid: Grid) -> Exchange:
    """Settings of the exchange of one cell. Clients with fewer than M samples send nothing."""
    largest = int(data.clients.sizes.max())
    if isinstance(size, int) and size > largest:
        raise BadInput(
            f"M = {size}: no client of {data.name} has so many samples, the largest has {largest}; "
            "use 'all'"
        )
    cutoff = max(grid.base.cutoff, size) if isinstance(size, int) else grid.base.cutoff
    how = replace(grid.base, m=size, cutoff=cutoff, average=1, wait=0.0, source="pool")
    how.check(data.clients.sizes)
    if noise.is_epsilon:
        group = how.smallest_group(data.clients.sizes)
        return calibrated(how, noise.amount, group, grid.delta, nonnegative=nonnegative(data))
    return replace(how, noise=noise.amount)


def promise(data: FederatedData, how: Exchange, grid: Grid) -> Guarantee:
    """The guarantee of an exchange to a sample of these clients."""
    return guarantee(
        how, how.smallest_group(data.clients.sizes), grid.delta, nonnegative=nonnegative(data)
    )


def cell(
    grounds: Sequence[Ground],
    size: GroupSize,
    noise: Noise,
    grid: Grid,
    listen: Callable[[str], None],
) -> Attacked:
    """Run all attacks at one M and one noise, and combine their results over the seeds."""
    found = []
    for g in grounds:
        how = exchange(g.data, size, noise, grid)
        listen(f"seed {g.seed}: M = {size}, σ = {how.noise:.3g}")
        found.append(_attacks(g, how, grid, len(grounds)))
    data, how = grounds[0].data, found[0].how
    member = np.concatenate([f.member for f in found])
    scored = [np.concatenate(parts) for parts in zip(*(f.scores for f in found), strict=True)]
    inside, outside = (
        np.concatenate(parts) for parts in zip(*(f.neighbours for f in found), strict=True)
    )
    attempts = [attempt for f in found for attempt in f.attempts]
    changes = [
        [change for some in by_seed for change in some]
        for by_seed in zip(*(f.changes for f in found), strict=True)
    ]
    groups = [
        f.how.smallest_group(g.data.clients.sizes) for g, f in zip(grounds, found, strict=True)
    ]
    promised = [promise(g.data, f.how, grid) for g, f in zip(grounds, found, strict=True)]
    server, client, together = (rates(s[member], s[~member], grid.confidence) for s in scored)
    alone, mixed = (
        Linking(*np.mean(parts, axis=0).tolist())
        for parts in zip(*(f.linking for f in found), strict=True)
    )
    return Attacked(
        m=size,
        how=how,
        group=min(groups),
        # the largest ε holds for the scores of all seeds
        guarantee=max(promised, key=lambda one: one.epsilon),
        server=server,
        client=client,
        together=together,
        neighbours=neighbours.summary(inside, outside, grid.delta, grid.confidence),
        labels=Labels(*np.mean([f.labels for f in found], axis=0).tolist()),
        linking=alone,
        linking_together=mixed,
        reconstruction=reconstruction.summary(attempts, data.input_shape),
        differencing=[
            differencing.summary(some, average, wait, differencing.clients_needed(data, wait))
            for some, (wait, average) in zip(
                changes, product((0.0, grid.wait), (1, grid.average)), strict=True
            )
        ],
        attempts=attempts,
        changes=changes[0],
    )


class _Found(NamedTuple):
    """Results of the attacks on one seed's exchange; pairs and triples as in `Attacked`."""

    how: Exchange
    scores: tuple[Array, Array, Array]
    member: Array
    neighbours: tuple[Array, Array]
    labels: Labels
    linking: tuple[Linking, Linking]
    attempts: list[Attempt]
    changes: list[list[Change]]


def _attacks(g: Ground, how: Exchange, grid: Grid, seeds: int) -> _Found:
    """Run all attacks on one seed; trials, means and victims are divided among the seeds."""
    rng = stream(g.seed, "audit")
    scene = stage(g.data, how, g.seed)
    together = averaged(scene, min(grid.average, len(scene.groups)))
    suspects = membership.candidates(scene, g.others, rng)
    alone = membership.scores(scene.uploads, suspects, g.population, scene.owner)
    mixed = membership.scores(together.pool, suspects, g.population)
    releases = rng.permutation(len(scene.groups))[: math.ceil(grid.means / seeds)]
    victims = math.ceil(grid.victims / seeds)
    return _Found(
        how,
        (alone.client, alone.anybody, mixed.anybody),
        suspects.member,
        neighbours.attack(scene, g.others[:PAIRS], math.ceil(grid.trials / seeds), rng),
        labels.attack(scene, rng),
        (linking.attack(scene, g.population, rng), linking.attack(together, g.population, rng)),
        [
            reconstruction.attempt(scene, int(release), g.public, g.population, rng)
            for release in releases
        ],
        [
            differencing.attack(where, wait, victims, g.population, rng)
            for wait, where in product((0.0, grid.wait), (scene, together))
        ],
    )
