"""Which settings of an exchange go together."""

from typing import Any

import numpy as np
import pytest

from fedmix import BadInput, Exchange

SECURE: dict[str, Any] = {"secure": "secagg+", "average": 2, "clip": 1.0}


@pytest.mark.parametrize("average", [2, 512])
def test_secure_sums(average: int) -> None:
    assert Exchange(**SECURE | {"average": average}).average == average


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"secure": "other"}, "secure='other' is unknown"),
        ({"average": 1}, "secure needs average between 2 and 512"),
        ({"average": 513}, "secure needs average between 2 and 512"),
        ({"m": 5}, "secure needs m='all'"),
        ({"clip": None}, "secure needs clip"),
        ({"source": "own"}, "secure goes with source='pool'"),
        ({"exclude_own": True}, "secure goes with source='pool' and without exclude_own only"),
        ({"wait": 0.5}, "secure does not go with wait"),
    ],
)
def test_what_secure_sums_do_not_go_with(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=f"^exchange.{said}"):
        Exchange(**SECURE | wrong)


@pytest.mark.parametrize(
    ("how", "sizes"),
    [
        (Exchange(m=1, source="own", cutoff=9), [1]),  # nobody's own means are cut off
        (Exchange(m=3, cutoff=3), [2, 3]),
        (Exchange(m=2, average=2), [3, 3]),  # one mean each
    ],
)
def test_settings_that_clients_can_meet(how: Exchange, sizes: list[int]) -> None:
    how.check(np.array(sizes))


@pytest.mark.parametrize(
    ("how", "sizes", "said"),
    [
        (Exchange(cutoff=4), [3, 2], "cutoff=4 leaves no client .* the largest has 3 samples"),
        (Exchange(m=3, cutoff=2), [1, 5, 2], "m=3 is more than the 2 samples of client 2"),
        (Exchange(m=2, average=3), [3, 3], "average=3 is more than the 2 means"),
    ],
)
def test_settings_that_clients_cannot_meet(how: Exchange, sizes: list[int], said: str) -> None:
    with pytest.raises(BadInput, match=f"^exchange.{said}"):
        how.check(np.array(sizes))


def test_all_of_a_clients_samples_are_no_fraction_of_them() -> None:
    with pytest.raises(BadInput, match=r"exchange.m=1\.0: a fraction of n_k must be below 1"):
        Exchange(m=1.0)
