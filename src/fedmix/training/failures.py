"""What went wrong: a server step that overflows, or a collapse.

A model has collapsed if it had learned and now only guesses, though its loss is finite. That
happens when all ReLUs die, for example. Guessing means always naming the most common class.
Accuracy is rescaled to 0 for guessing and 1 for no mistakes, so that two classes and a hundred are
judged alike. The runs in docs/results separate the two cases clearly: in those that collapsed, ten
tests in a row fall below 0.03; in those that learn, the best of any ten is above 0.38, once 0.2 is
passed.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from fedmix.core.errors import SERVER, Collapsed, Diverged
from fedmix.core.types import Array, Params
from fedmix.objectives.base import Objective
from fedmix.server_steps import FedAvg, ServerStep
from fedmix.training.advice import advice
from fedmix.training.dpfedavg import DPFedAvg

TESTS = 10  # in a row, since accuracy varies much where clients hold few classes
# Where clients hold one class, a model that learns may name two of ten by luck now and then.
LEARNED = 0.2
LUCK = 4  # standard deviations of an accuracy that LEARNED has to exceed
GUESSING = 0.05  # a collapsed network may still tell some samples apart


def check_step(weights: Params, round_: int, step: ServerStep, updates: DPFedAvg | None) -> None:
    """Raise Diverged if the weights that a server step made are NaN or infinite."""
    if not all(torch.isfinite(p).all() for p in weights.values()):
        noise = " or updates.noise_multiplier" if updates else ""
        what = f"its weights are NaN or infinite; lower its rate (server.lr){noise}"
        raise Diverged(round_, SERVER, 0, f"{type(step).__name__}: {what}")


def blamed(error: Diverged, step: ServerStep, updates: DPFedAvg | None) -> Diverged:
    """Return a client's error, with what the server did to the weights that the client began from.

    Args:
        error: The error.
        step: The server step.
        updates: DP-FedAvg, if there is noise on updates.
    """
    if error.client == SERVER or error.round == 1:
        return error
    reason = error.reason
    if error.step == 0 and type(step) is not FedAvg:
        reason += (
            f"; it had only begun, from the weights that the server step {type(step).__name__} "
            "made in the round before: lower its rate (server.lr) first"
        )
    if updates and updates.noise_multiplier:
        reason += "; the noise on updates may be too much: lower updates.clip"
    return Diverged(error.round, error.client, error.step, reason)


def guessing_level(labels: Array) -> float | None:
    """Return the accuracy of always naming the most common class.

    It is None if so few samples are of other classes that a lucky model could seem to have learned.

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
    """Whether the model was clearly better than guessing once, but not in the last ten tests."""
    learned = any(accuracy > level + LEARNED * (1 - level) for accuracy in accuracies)
    return learned and guesses(accuracies, level)


class CollapseWatch:
    """Watches the accuracies of a run for a collapse.

    `tested` holds the tested rounds and their accuracies. `level` is the accuracy of guessing; None
    if there is none to compare with.

    Args:
        objective: The objective, for the advice in messages.
        labels: The labels of the test samples; None for a regression.
    """

    def __init__(self, objective: Objective, labels: Array | None) -> None:
        self.objective, self.tested = objective, list[tuple[int, float]]()
        self.level = None if labels is None else guessing_level(labels)

    def note(self, round_: int, metrics: Mapping[str, float] | None) -> None:
        """Record a round's test metrics, if it has any."""
        if metrics and "accuracy" in metrics:
            self.tested.append((round_, metrics["accuracy"]))

    def check(self) -> None:
        """Raise `Collapsed` if the tests so far show a collapse."""
        if self.level is not None:
            stop_if_collapsed(self.tested, self.level, self.objective)

    def warning(self) -> str | None:
        """Return a warning for a finished run that never learned; None if it did."""
        if self.level is None:
            return None
        return warning([accuracy for _, accuracy in self.tested], self.level)


def stop_if_collapsed(
    tests: Sequence[tuple[int, float]], level: float, objective: Objective
) -> None:
    """Raise `Collapsed` if the tests so far, pairs of round and accuracy, show a collapse."""
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
    """Return a warning for a finished run with these accuracies that never learned, or None."""
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
