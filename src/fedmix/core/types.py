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

    `x` (B, ...) are inputs and `y` (B, C) soft labels or regression targets. `mask` (B,) is 1 for a
    sample and 0 for padding. `key` is the integer from which dropout masks are hashed.

    The other fields are set only if the objective needs them: `mean_x`, `mean_y` are received means
    (leading size 1: one for the batch; B: one per sample), `partner_x`, `partner_y` are samples to
    mix with, and `lam` is a mixing ratio that was drawn.
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


def each_field(f: Callable[[Tensor], Any], fields: Fields) -> Fields:
    """Apply `f` to every field of a named tuple; fields that are None stay None."""
    kind: Any = type(fields)
    made: Fields = kind._make(None if field is None else f(field) for field in fields)
    return made
