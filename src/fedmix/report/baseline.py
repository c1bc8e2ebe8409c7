"""Each group's difference from a baseline, over the seeds that both have."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedmix.report.groups import Group, main
from fedmix.report.paired import Tested, holm, paired


class Against(NamedTuple):
    """A group's difference from the baseline in the mean of the last ten evaluations.

    Attributes:
        mean: The mean difference; None if no seed has both.
        seeds: How many seeds have both.
        tested: The paired test; None if there is nothing to test.
        p: p by Holm's method, for all groups that are tested against this baseline.
    """

    mean: float | None = None
    seeds: int = 0
    tested: Tested | None = None
    p: float | None = None


def against(groups: Sequence[Group], baseline: Group) -> list[Against]:
    """Compare groups with one of them; only finished runs with finite scores count."""
    theirs, found = _by_seed(baseline), []
    for group in groups:
        ours = {} if group is baseline else _by_seed(group)
        differences = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
        mean = float(np.mean(differences)) if differences else None
        found.append(Against(mean, len(differences), paired(differences)))
    tested = {i: one.tested.p for i, one in enumerate(found) if one.tested}
    for i, p in zip(tested, holm(list(tested.values())), strict=True):
        found[i] = found[i]._replace(p=p)
    return found


def chosen(groups: Sequence[Group], name: str | None = None) -> Group | None:
    """Return the group with that label or algorithm; without a name FedAvg's, or the first.

    Of several with the same algorithm it is the main one. None if there is no such group.
    """
    for group in groups:
        if group.label == name:
            return group
    mains = main(groups)
    return mains.get(name or "fedavg") or (None if name else groups[0])


def _by_seed(group: Group) -> dict[str, float]:
    return {
        run.seed: run.scores.last_ten
        for run in group.runs
        if run.finished and math.isfinite(run.scores.last_ten)
    }
