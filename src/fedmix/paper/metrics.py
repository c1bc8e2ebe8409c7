"""What the paper's tables measure, each read from a finished run."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedmix.report.load import RunRecord

Protocol = Literal["last", "best", "last-ten", "late"]
PROTOCOLS: tuple[Protocol, ...] = ("last", "best", "last-ten", "late")
LATE = 0.75  # "late" is the mean of the tests from this share of the rounds on


@dataclass(frozen=True)
class Metric:
    """A number of a run, in the paper's unit.

    Attributes:
        title: Its title, with the unit.
        of: Returns the number of a run by a protocol; NaN if it was not measured, infinite if the
            target was not reached.
        more_is_better: Whether a larger number is better.
        decimals: How many decimals the paper prints.
    """

    title: str
    of: Callable[[RunRecord, Protocol], float]
    more_is_better: bool = True
    decimals: int = 1

    def text(self, value: float) -> str:
        """Return a value as the paper prints it."""
        return (
            "–"
            if math.isnan(value)
            else f"{value:.{self.decimals}f}"
            if math.isfinite(value)
            else "never"
        )

    @property
    def worst(self) -> float:
        """The value that ranks a run without a number."""
        return -math.inf if self.more_is_better else math.inf


def _accuracy(run: RunRecord, protocol: Protocol) -> float:
    if protocol == "late":
        return _late(run, "accuracy")
    return 100 * run.scores[PROTOCOLS.index(protocol)]


def _late(run: RunRecord, name: str) -> float:
    tests = run.metrics[name][run.metrics["round"] >= LATE * run.rounds]
    tests = tests[~np.isnan(tests)]
    return 100 * float(tests.mean()) if len(tests) else math.nan


def _head(run: RunRecord, protocol: Protocol) -> float:
    """The accuracy with the head; "last" and "late" are known, the others are not."""
    tests = run.metrics["head_accuracy"]
    if protocol == "late":
        return _late(run, "head_accuracy")
    return 100 * float(tests[-1]) if protocol == "last" and len(tests) else math.nan


def _rounds(run: RunRecord, _: Protocol) -> float:
    reached = run.scores.to_target
    return math.inf if math.isnan(reached) else reached


def _hours(run: RunRecord, protocol: Protocol) -> float:
    seconds = run.metrics["seconds"][run.metrics["round"] >= _rounds(run, protocol)]
    return float(seconds[0]) / 3600 if len(seconds) else math.inf


ACCURACY = Metric("test accuracy, %", _accuracy)
HEAD = Metric("test accuracy with a head from statistics, %", _head)
ROUNDS = Metric("rounds to the target", _rounds, more_is_better=False, decimals=0)
HOURS = Metric("hours to the target", _hours, more_is_better=False, decimals=2)
