"""Clients in slots: everybody stays as long as it needs, alone in its slot, and the round is not
much longer than it must be.
"""

from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmix.training.engines.slots import Stay, busy, length, pack, slots_for

STEPS = st.lists(st.integers(1, 60), min_size=1, max_size=40)
SLOTS = st.integers(1, 12)


@given(STEPS, SLOTS)
def test_everybody_stays_its_steps_in_one_slot(steps: list[int], slots: int) -> None:
    stays = pack(steps, slots)
    assert sorted(stay.client for stay in stays) == list(range(len(steps)))
    assert all(stay.stop - stay.start == steps[stay.client] for stay in stays)
    assert all(0 <= stay.slot < slots for stay in stays)


@given(STEPS, SLOTS)
def test_nobody_shares_a_slot_and_none_stands_empty_before_the_next(
    steps: list[int], slots: int
) -> None:
    stays = pack(steps, slots)
    for slot in range(slots):
        mine = sorted((stay for stay in stays if stay.slot == slot), key=lambda stay: stay.start)
        assert not mine or mine[0].start == 0
        assert all(before.stop == after.start for before, after in pairwise(mine))


@given(STEPS, SLOTS)
def test_they_come_in_the_order_they_finish(steps: list[int], slots: int) -> None:
    stays = pack(steps, slots)
    assert [(stay.stop, stay.slot) for stay in stays] == sorted(
        (stay.stop, stay.slot) for stay in stays
    )
    assert length(stays) == stays[-1].stop


@given(STEPS, SLOTS)
def test_the_round_is_about_as_long_as_it_must_be(steps: list[int], slots: int) -> None:
    """Whoever finishes last began when no slot was free: length <= (Σ − longest) / slots + longest
    (Graham 1966).
    """
    took = length(pack(steps, slots))
    assert max(max(steps), -(-sum(steps) // slots)) <= took
    assert slots * took <= sum(steps) + (slots - 1) * max(steps)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=6), st.integers(1, 3))
def test_longest_first_is_within_a_third_of_the_best(steps: list[int], slots: int) -> None:
    """At most 4/3 − 1/(3·slots) times the shortest of all assignments (Graham 1969), which are
    tried one by one.
    """
    best = min(
        max(
            sum(s for s, slot in zip(steps, where, strict=True) if slot == own)
            for own in range(slots)
        )
        for where in product(range(slots), repeat=len(steps))
    )
    assert 3 * slots * length(pack(steps, slots)) <= (4 * slots - 1) * best


def test_by_hand() -> None:
    """Longest first: 5 and 4 begin; 3 follows the 4, 2 follows the 5, and the last 2 as well, since
    that slot is free at 7.
    """
    assert pack([2, 4, 5, 3, 2], 2) == [
        Stay(client=1, slot=1, start=0, stop=4),
        Stay(client=2, slot=0, start=0, stop=5),
        Stay(client=0, slot=0, start=5, stop=7),
        Stay(client=3, slot=1, start=4, stop=7),
        Stay(client=4, slot=0, start=7, stop=9),
    ]


def test_more_slots_than_clients_stay_empty() -> None:
    stays = pack([3, 3], 5)
    assert [stay.slot for stay in stays] == [0, 1]
    assert busy(stays, 5) == pytest.approx(6 / 15)


@given(STEPS, SLOTS, st.booleans(), st.floats(0.05, 1.0))
def test_the_number_of_slots_is_the_largest_that_is_busy(
    steps: list[int], most: int, halving: bool, share: float
) -> None:
    """Of most, most − 1, ... (or most, its half, ...): the first whose slots are busy; 1 is."""
    tried = [min(most, len(steps))]
    while tried[-1] > 1:
        tried.append((tried[-1] + 1) // 2 if halving else tried[-1] - 1)

    def used(slots: int) -> float:
        return sum(steps) / (slots * length(pack(steps, slots)))

    assert slots_for(steps, most, halving=halving, share=share) == next(
        s for s in tried if s == 1 or used(s) >= share
    )


@pytest.mark.parametrize(
    ("steps", "most", "halving", "share", "slots"),
    [
        ([7], 10, False, 0.9, 1),
        ([5] * 10, 10, False, 0.9, 10),
        (
            [5] * 10,
            4,
            False,
            0.9,
            2,
        ),  # 4: 15 steps for 12.5 of work each; 3: 20 for 16.7; 2: 25, all busy
        ([10, 1, 1, 1], 4, False, 0.9, 1),  # 2: 10 steps of 2, 13 busy
        ([10, 1, 1, 1], 4, True, 0.5, 2),  # 4: 13 of 40 busy; 2: 13 of 20
        ([8] * 8, 8, True, 0.5, 8),
    ],
)
def test_numbers_of_slots_by_hand(
    steps: list[int], most: int, halving: bool, share: float, slots: int
) -> None:
    assert slots_for(steps, most, halving=halving, share=share) == slots
