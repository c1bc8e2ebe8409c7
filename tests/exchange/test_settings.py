"""Which settings of an exchange go together."""

from typing import Any

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
