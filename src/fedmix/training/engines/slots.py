"""Clients with different numbers of steps in a fixed number of slots.

When a client finishes, the next one takes its slot.
"""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedmix.core.types import Array
from fedmix.training.draws import ClientPlan


class Stay(NamedTuple):
    """A client (by its position in the round) in a slot from step `start` until before `stop`."""

    client: int
    slot: int
    start: int
    stop: int


def pack(steps: Sequence[int], slots: int) -> list[Stay]:
    """Assign clients to slots: longest first, each to the slot that is free first.

    Args:
        steps: The number of steps of each client.
        slots: The number of slots.

    Returns:
        One stay per client, in the order in which they finish.

    >>> [tuple(stay) for stay in pack([2, 5, 3], slots=2)]
    [(2, 1, 0, 3), (1, 0, 0, 5), (0, 1, 3, 5)]
    """
    free = [(0, slot) for slot in range(slots)]  # a heap of (step when free, slot)
    stays = []
    for client in np.argsort([-s for s in steps], kind="stable").tolist():
        start, slot = free[0]
        stays.append(Stay(client, slot, start, start + steps[client]))
        heapq.heapreplace(free, (stays[-1].stop, slot))
    return sorted(stays, key=lambda stay: (stay.stop, stay.slot))


def length(stays: Sequence[Stay]) -> int:
    """Return the number of steps of the round."""
    return max(stay.stop for stay in stays)


def busy(stays: Sequence[Stay], slots: int) -> float:
    """Return the share of slots and steps in which a client trains."""
    return sum(stay.stop - stay.start for stay in stays) / (slots * length(stays))


def slots_for(steps: Sequence[int], most: int, *, halving: bool, share: float) -> int:
    """Return the largest number of slots, at most `most`, of which at least `share` is busy.

    Args:
        steps: The number of steps of each client.
        most: The largest number of slots.
        halving: Whether to try halves only, because each number of slots is expensive to prepare.
        share: The smallest share of slots and steps in which a client must train.
    """
    slots = min(most, len(steps))
    if not halving:  # no round is shorter than its longest client
        slots = min(slots, max(1, int(sum(steps) / (share * max(steps)))))
    while slots > 1 and busy(pack(steps, slots), slots) < share:
        slots = -(-slots // 2) if halving else slots - 1
    return slots


def arrange(plans: Sequence[ClientPlan], stays: Sequence[Stay], slots: int) -> ClientPlan:
    """Arrange the plans of several clients into one of (steps, slots, ...).

    Places without a client are masked. No other function handles clients of different lengths.
    """
    steps = length(stays)

    def placed(draws: tuple[Array, ...]) -> Array:
        widest = max(one.shape[1:] for one in draws)
        together = np.zeros((steps, slots, *widest), draws[0].dtype)
        for stay in stays:
            mine = draws[stay.client]
            together[stay.start : stay.stop, stay.slot][tuple(slice(n) for n in mine.shape)] = mine
        return together

    return ClientPlan._make(None if f[0] is None else placed(f) for f in zip(*plans, strict=True))
