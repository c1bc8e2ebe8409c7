"""Clients of different length in a fixed number of slots: as one finishes, the next takes its place."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Stay(NamedTuple):
    """A client (by its position in the round) in a slot from step `start` until before `stop`."""

    client: int
    slot: int
    start: int
    stop: int


def pack(steps: Sequence[int], slots: int) -> list[Stay]:
    """Longest first, each into the slot that is free first; ordered by when they finish.

    >>> pack([2, 5, 3], 2)
    [Stay(client=1, slot=0, start=0, stop=5), Stay(client=0, slot=1, start=3, stop=5), Stay(client=2, slot=1, start=0, stop=3)]
    """
    free = [0] * slots
    stays = []
    for client in np.argsort([-s for s in steps], kind="stable").tolist():
        slot = min(range(slots), key=free.__getitem__)
        stays.append(Stay(client, slot, free[slot], free[slot] + steps[client]))
        free[slot] = stays[-1].stop
    return sorted(stays, key=lambda stay: (stay.stop, stay.slot))


def length(stays: Sequence[Stay]) -> int:
    """How many steps the round takes."""
    return max(stay.stop for stay in stays)


def busy(stays: Sequence[Stay], slots: int) -> float:
    """The share of slots and steps that are a client's."""
    return sum(stay.stop - stay.start for stay in stays) / (slots * length(stays))


def slots_for(steps: Sequence[int], most: int, *, halving: bool, share: float) -> int:
    """The largest number of slots, from `most` down, of which at least `share` is busy; by halves, where each number is dear."""
    slots = min(most, len(steps))
    while slots > 1 and busy(pack(steps, slots), slots) < share:
        slots = -(-slots // 2) if halving else slots - 1
    return slots
