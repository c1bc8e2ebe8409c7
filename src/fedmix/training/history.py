"""Metrics by round as columns, and as a picture."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmix.core.errors import BadInput
from fedmix.core.reprs import as_html, counted
from fedmix.core.types import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIRST = "round", "accuracy", "mse", "loss", "local_loss"  # the order of columns
LAST = 10  # rounds that a notebook shows


class History(dict[str, Array]):
    """A column for each metric: an array with a value for each round, NaN where there is none.

    `pandas.DataFrame(history)` makes a table of it.

    >>> history = History.of([{"round": 1, "loss": 2.0}, {"round": 2, "loss": 1.5}])
    >>> history
    History of 2 rounds: loss
    >>> history["loss"].tolist()
    [2.0, 1.5]
    """

    @staticmethod
    def of(rounds: Sequence[Mapping[str, Any]]) -> "History":
        """Make one from the metrics of each round by name; None becomes NaN."""
        found = dict.fromkeys(name for entry in rounds for name in entry)
        order = [n for n in FIRST if n in found] + [n for n in found if n not in FIRST]
        return History(
            {name: np.array([entry.get(name) for entry in rounds], np.float64) for name in order}
        )

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return len(self["round"]) if self else 0

    def plot(self, name: str | None = None, *, ax: "Axes | None" = None, **style: Any) -> "Axes":
        """Draw a metric by round.

        Args:
            name: The metric; by default the score, or the local loss if nothing was tested.
            ax: Axes to draw into; by default new ones.
            style: More for matplotlib's `plot`, such as `label="FedMix"`.

        Returns:
            The axes.

        Raises:
            BadInput: There is no such metric or no round, or matplotlib is not installed.
        """
        if not self.rounds:
            raise BadInput("no round is done yet, so there is nothing to plot; run some first")
        name = name or next(n for n in ("accuracy", "mse", "local_loss") if n in self)
        if name not in self:
            known = ", ".join(n for n in self if n != "round")
            raise BadInput(f"there is no metric {name!r} to plot; choose one of: {known}")
        if ax is None:
            try:
                from matplotlib import pyplot
            except ModuleNotFoundError as error:
                raise BadInput("to plot, run: pip install 'fedmix[cli]'") from error
            ax = pyplot.subplots()[1]
        measured = ~np.isnan(self[name])
        ax.plot(self["round"][measured], self[name][measured], **style)
        ax.set(xlabel="round", ylabel=name.replace("_", " "))
        return ax

    def __repr__(self) -> str:
        names = ", ".join(name for name in self if name != "round")
        return f"History of {counted(self.rounds, 'round')}{': ' if names else ''}{names}"

    def _repr_html_(self) -> str:
        rows = list(zip(*self.values(), strict=True))
        more = [["…"]] if len(rows) > LAST else []
        shown = [["–" if np.isnan(v) else f"{v:.6g}" for v in row] for row in rows[-LAST:]]
        return as_html([*more, *shown], head=self)
