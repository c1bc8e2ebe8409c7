"""Rounds to come: what `run` returns."""

import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fedmix.core.errors import FedmixWarning

if TYPE_CHECKING:
    from fedmix.training.history import History
    from fedmix.training.rounds import Round, Rounds


class Coming(Iterator["Round"]):
    """The rounds of a run, each of which is trained when it is asked for.

    Nothing is trained before: iterate over them, or call `finish()`. A warning says so if they are
    thrown away untouched.
    """

    def __init__(self, rounds: Iterator["Round"], federation: "Rounds", last: int) -> None:
        self._rounds, self._federation = rounds, federation
        self._first, self._last = federation.round + 1, last
        self._begun = self._told = False

    def __next__(self) -> "Round":
        self._begun = True
        return next(self._rounds)

    def finish(self) -> "History":
        """Train all rounds that are left, and return the history of the federation."""
        for _ in self:
            pass
        return self._federation.history

    def __repr__(self) -> str:
        rounds = f"rounds {self._first} to {self._last}"
        if self._first > self._last:
            return f"no rounds: {self._last} are done"
        if not self._begun:
            self._told = True
            return f"{rounds}, not run yet: iterate over them, or call .finish()"
        done = self._federation.round
        return f"{rounds}, {'all' if done >= self._last else done - self._first + 1} done"

    def __del__(self) -> None:
        known = self._begun or self._told or self._first > self._last
        if not (known or sys.is_finalizing()):
            warnings.warn(
                f"rounds {self._first} to {self._last} were not run: iterate over what "
                "`run` returns, or call its .finish()",
                FedmixWarning,
                stacklevel=2,
            )
