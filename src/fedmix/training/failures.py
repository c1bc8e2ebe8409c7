"""Whether a model has lost what it had learned and only guesses, with every number finite: one
whose ReLUs died, say.

To guess is to name the most common class always. How much better a model is goes from 0, guessing,
to 1, no mistake, so that two classes and a hundred are judged alike. The runs in docs/results leave
much room between the two kinds: in those that collapsed, ten tests in a row come to lie below 0.03;
in those that learn, the best of any ten is above 0.38, once 0.2 is passed.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from fedmix.core.errors import Collapsed
from fedmix.core.types import Array
from fedmix.objectives.base import Objective
from fedmix.training.advice import advice

TESTS = 10  # in a row, since accuracy jumps from test to test where clients hold few classes
# where clients hold one class, models that name two of ten by luck come and go while they learn
LEARNED = 0.2
LUCK = 4  # standard deviations of an accuracy, which what was learned has to exceed
GUESSING = 0.05  # what is left of a network may still tell some samples apart


def guessing_level(labels: Array) -> float | None:
    """The accuracy of always naming the most common class; None where so few samples are of others
    that luck may look learned.

    >>> guessing_level(np.repeat([0, 1, 2], [150, 300, 150]))
    0.5
    >>> guessing_level(np.array([0, 2, 2, 1]))
    """
    level = float(np.bincount(labels).max() / len(labels))
    luck = math.sqrt(level * (1 - level) / len(labels))
    return level if LEARNED * (1 - level) > LUCK * luck else None


def guesses(accuracies: Sequence[float], level: float) -> bool:
    """Whether none of the last ten tests was better than guessing."""
    return max(accuracies[-TESTS:]) <= level + GUESSING * (1 - level)


def collapsed(accuracies: Sequence[float], level: float) -> bool:
    """Whether the model once was clearly better than guessing, but not in the last ten tests."""
    learned = any(accuracy > level + LEARNED * (1 - level) for accuracy in accuracies)
    return learned and guesses(accuracies, level)


class CollapseWatch:
    """Watches the accuracies of a run for a collapse.

    `tested` holds the rounds that were tested and their accuracies. `level` is the accuracy of a
    guess, None where there is none to compare with.
    """

    def __init__(self, objective: Objective, labels: Array | None) -> None:
        self.objective, self.tested = objective, list[tuple[int, float]]()
        self.level = None if labels is None else guessing_level(labels)

    def note(self, round_: int, metrics: Mapping[str, float] | None) -> None:
        """Take in a round's test metrics, if it has any."""
        if metrics and "accuracy" in metrics:
            self.tested.append((round_, metrics["accuracy"]))

    def check(self) -> None:
        """Raise `Collapsed` if the tests so far say so."""
        if self.level is not None:
            stop_if_collapsed(self.tested, self.level, self.objective)

    def warning(self) -> str | None:
        """What to say of a run that is done without ever having learned."""
        if self.level is None:
            return None
        return warning([accuracy for _, accuracy in self.tested], self.level)


def stop_if_collapsed(
    tests: Sequence[tuple[int, float]], level: float, objective: Objective
) -> None:
    """Raise if the tests so far, as rounds and accuracies, say so."""
    accuracies = [accuracy for _, accuracy in tests]
    if not collapsed(accuracies, level):
        return
    best, (now, _) = max(accuracies), tests[-1]
    when = tests[accuracies.index(best)][0]
    raise Collapsed(
        now,
        f"the model is hardly better than a guess: {_compared(accuracies, level)}, after "
        f"{_percent(best)} in round {when}; " + advice(objective),
    )


def warning(accuracies: Sequence[float], level: float) -> str | None:
    """What to say of a run that is done and ends like this without ever having learned."""
    if not accuracies or not guesses(accuracies, level):
        return None
    return f"its model is hardly better than a guess: {_compared(accuracies, level)}"


def _compared(accuracies: Sequence[float], level: float) -> str:
    last = accuracies[-TESTS:]
    tests = "ten tests" if len(last) == TESTS else "tests"
    return (
        f"{_percent(max(last))} at most in the last {tests}, where always naming the most "
        f"common class gives {_percent(level)}"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
