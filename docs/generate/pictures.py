"""Pictures of published runs and measurements; most are curves by round and charts."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from docs.generate import privacy, speed
from docs.generate.beyond import frontier
from docs.generate.results import DEMO
from docs.generate.runs import STORE, Row
from docs.generate.tables import BF16, CPU, FOUR, GPU, changed, row
from fedmix.paper import TABLES, picture
from fedmix.paper.comparison import compare
from fedmix.paper.study import Study
from fedmix.report import draw
from fedmix.report.load import load

SIX = ("fedavg", "naivemix", "fedmix", "fedprox", "localmix", "globalmix")
TRAINS = (
    "globalmix", "fedavg", "localmix", "naivemix", "fedmix-logits", "fedprox", "localmix+prox",
    "naivemix+prox",
)  # fmt: skip
THIRD = changed("cifar100", "FedMix without ℓ3", "fedmix", {"objective.third": 0.0})


def curves(rows: Sequence[Row], path: Path) -> None:
    """Draw the score of rows by round; failed runs until they failed."""
    draw([load(run.packed) for one in rows for run in one.runs], path)


def chart(
    table: str, rows: Sequence[str], column: str | None, settings: Mapping[str, Any], path: Path
) -> None:
    """Draw three seeds of a table of the paper, one if it has several columns, beside the paper."""
    seeds = (0, 1, 2) if column else (0,)
    study = Study(TABLES[table].select(",".join(rows), column), seeds, "paper", settings)
    picture.draw(compare(study, STORE, "last-ten"), path)


PICTURES: Mapping[str, Callable[[Path], None]] = {
    "cifar10.svg": partial(chart, "main", FOUR[:3], "cifar10", GPU),
    "cifar10-curves.svg": partial(curves, [row("cifar10", name) for name in SIX]),
    "cifar10-classes.svg": partial(
        chart, "classes", ("fedavg", "fedmix", "fedmix-logits"), None, GPU | BF16
    ),
    "cifar100-curves.svg": partial(curves, [*(row("cifar100", name) for name in FOUR), THIRD]),
    "digits.svg": partial(curves, [row("digits", name) for name in DEMO]),
    "femnist.svg": partial(chart, "main", TRAINS, "femnist", CPU),
    "frontier.svg": frontier,
    "shakespeare-curves.svg": partial(curves, [row("shakespeare", name) for name in FOUR]),
    **privacy.PICTURES,
    **speed.PICTURES,
}
