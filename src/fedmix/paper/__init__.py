"""The paper's tables and figures: the paper's numbers, and the experiments that reproduce them.

`beyond` and `frontier` are tables of this project's own.

>>> table = TABLES["epochs"]
>>> table.number("fedmix", "5"), table.experiment("fedmix", "5").training.epochs
(83.0, 5)
"""

from fedmix.core.errors import BadInput
from fedmix.core.nearest import choice
from fedmix.paper import (
    beyond,
    classes,
    clients,
    controls,
    cost,
    cutoff,
    dirichlet,
    epochs,
    frontier,
    hidden,
    localaccuracy,
    localdata,
    main,
    meansize,
    naiveratio,
    noise,
    participation,
    ratio,
    serveraverage,
    shakespeare,
    split,
)
from fedmix.paper.base import PaperTable, Part
from fedmix.paper.metrics import Metric

__all__ = ["STUDIES", "TABLES", "Metric", "Part", "PaperTable", "named"]

# In the order of the paper.
_MODULES = (
    main, shakespeare, clients, localdata, ratio, meansize, classes, participation, controls,
    hidden, epochs, cost, cutoff, localaccuracy, noise, serveraverage, split, naiveratio, dirichlet,
)  # fmt: skip
TABLES: dict[str, PaperTable] = {module.TABLE.name: module.TABLE for module in _MODULES}
STUDIES = TABLES | {t.name: t for t in (beyond.TABLE, frontier.TABLE)}
"""The paper's tables, and those that are not the paper's."""


def named(name: str) -> PaperTable:
    """Return the table of that name; raise BadInput if there is none."""
    if name not in STUDIES:
        raise BadInput(f"table {name!r} is unknown; {choice(name, STUDIES)}")
    return STUDIES[name]
