"""Types that all packages share."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from torch import Tensor

Fields = TypeVar("Fields", bound=tuple[Any, ...])

Array: TypeAlias = np.ndarray[Any, Any]
"""A numpy array of any shape and type."""

Params: TypeAlias = dict[str, Tensor]
"""Parameters of a model by name; the vectorised engine stacks those of all clients."""


class Batch(NamedTuple):
    """One client's batch for one local step, with everything that was drawn for it.

    `x` (B, ...) and `y` (B, C) are inputs and soft labels (or regression targets), `mask` (B,) is 1
    for a sample and 0 for padding, `key` is the integer from which dropout masks are hashed. The
    other fields are None unless the objective's `needs` ask for them: `mean_x` and `mean_y` are
    received means (leading size 1: one for the batch; B: one per sample), `partner_x` and
    `partner_y` are samples to mix with, `lam` is a mixing ratio that was drawn
    (or (B,): one for each sample), `counts` (C,) is
    how many samples of each class the client has, `samples` is how many it has, `kept` is what the
    client keeps between rounds, and `shared` is what the server sent along with the weights.
    """

    x: Tensor
    y: Tensor
    mask: Tensor
    key: Tensor
    mean_x: Tensor | None = None
    mean_y: Tensor | None = None
    partner_x: Tensor | None = None
    partner_y: Tensor | None = None
    lam: Tensor | None = None
    counts: Tensor | None = None
    samples: Tensor | None = None
    kept: Params | None = None
    shared: Params | None = None

    def only(self, rows: Tensor | slice) -> "Batch":
        """The batch with some of its samples; what they have in common stays."""
        by_sample = ("x", "y", "mask", "mean_x", "mean_y", "partner_x", "partner_y", "lam")
        present = {name: t for name in by_sample if (t := getattr(self, name)) is not None}
        size = len(self.mask)
        return self._replace(
            **{name: t[rows] for name, t in present.items() if t.shape[:1] == (size,)}
        )


def each_field(f: Callable[[Tensor], Any], fields: Fields) -> Fields:
    """A named tuple with `f` of every tensor in it; a field that is None stays None."""

    def applied(field: Any) -> Any:
        if isinstance(field, dict):
            return {name: f(tensor) for name, tensor in field.items()}
        return None if field is None else f(field)

    kind: Any = type(fields)
    made: Fields = kind._make(applied(field) for field in fields)
    return made
