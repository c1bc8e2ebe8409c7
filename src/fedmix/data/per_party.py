"""Data of one party of a federation, who loads its own samples."""

import numpy as np

from fedmix.core.errors import BadInput
from fedmix.core.registry import DATA
from fedmix.core.types import Array
from fedmix.data.federated import FederatedData
from fedmix.data.numbers import as_array
from fedmix.data.ragged import Ragged
from fedmix.data.transforms import Plain, Transform


@DATA.add("own", "each client's own samples, in a federation on Flower")
def own(*, seed: int = 0) -> FederatedData:  # noqa: ARG001 - every data set takes a seed
    """Placeholder in an experiment's [data] for samples that no single machine holds.

    Raises BadInput always: only a federation on Flower can run such an experiment.
    """
    raise BadInput(
        "[data] name='own' stands for samples that every client loads by itself; run it on Flower "
        "(docs/federation.md), or give arrays to fedmix.Federation"
    )


def alone(
    x: Array,
    y: Array,
    *,
    classes: int | None = None,
    transform: Transform | None = None,
    name: str = "own",
) -> FederatedData:
    """Make the data of one party: a client's samples, or those that the server tests on.

    Args:
        x: Inputs, (n, ...).
        y: Labels: integers below `classes`, (n,), or regression targets, (n, d).
        classes: Number of classes; None for regression.
        transform: Conversion of stored samples to model inputs; None: they are used as they are.
        name: Name in messages and records.

    Raises:
        BadInput: The arrays do not fit together, as in `FederatedData`.

    >>> own = alone(np.zeros((6, 4), np.float32), np.array([0, 1, 0, 1, 0, 1]), classes=2)
    >>> own.clients.sizes.tolist(), own.test
    ([6], None)
    """
    x = as_array(x, f"{name}: training inputs")
    return FederatedData(
        x,
        y,
        Ragged.of([np.arange(len(x))]),
        classes=classes,
        transform=transform or Plain(),
        private=True,
        name=name,
    )
