"""What a guarantee for exchanged means costs: accuracy by ε, use of the means and their size M.

This table is not the paper's. It has the settings of `beyond` on CIFAR-10 with 2 classes. Images
are clipped to a norm and labels to 1; noise is what `calibrated` says (half of μ² for labels).
"""

import math
from dataclasses import dataclass
from typing import Any

from fedmix.experiment.spec import Experiment
from fedmix.paper.base import PaperTable, Part
from fedmix.paper.beyond import CIFAR, DRAWN, SHORT, variants
from fedmix.privacy.accounting import calibrated

EPSILONS = (1, 3, 10, 30, 100, 300, 1000, 3000)
SAMPLES = 250  # of a client, the smallest
SIZES = ("all", 20, 10, 5, 2)
FIXED = {"objective.lam": 0.1}


def clipped(clip: float) -> dict[str, Any]:
    """Return the settings of an exchange of images clipped to this norm, as yet without noise."""
    return {"exchange.clip": clip, "exchange.label_clip": 1.0, "exchange.label_noise": 0.0}


@dataclass(frozen=True)
class Frontier(PaperTable):
    """A table whose columns are values of ε: the noise of a cell follows from its row's M too."""

    def experiment(self, row: str, column: str, seed: int = 0) -> Experiment:
        """Return the experiment of a row and an ε, with the noise that it needs, rounded up."""
        plain = super().experiment(row, column, seed)
        how = plain.build_exchange()
        if how is None or column == "none":
            return plain
        group = SAMPLES if how.m == "all" else int(how.m)
        noised = calibrated(how, float(column), group, nonnegative=True)
        assert noised.label_noise is not None
        return plain.with_settings({
            "exchange.noise": rounded_up(noised.noise),
            "exchange.label_noise": rounded_up(noised.label_noise),
        })  # fmt: skip


def rounded_up(value: float) -> float:
    """Return a value with four digits, not below it: another version may compute other last bits.

    >>> rounded_up(0.123401), rounded_up(12.0)
    (0.1235, 12.0)
    """
    digits = 3 - math.floor(math.log10(value))
    return round(math.ceil(value * 10.0**digits - 1e-6) * 10.0**-digits, digits)


TABLE = Frontier(
    name="frontier",
    title="Accuracy against ε (δ = 1e-5, one sample replaced) of exchanged means",
    source="",
    rows=(
        *variants("drawn", "NaiveMix, λ drawn", "naivemix", {**DRAWN, **clipped(30.0)}, *SIZES),
        *variants(
            "dim", "NaiveMix, λ drawn, clip 10", "naivemix", {**DRAWN, **clipped(10.0)}, *SIZES
        ),
        *variants("naivemix", "NaiveMix, λ = 0.1", "naivemix", {**FIXED, **clipped(30.0)}, *SIZES),
    ),
    columns=(
        *(Part(str(epsilon), f"ε = {epsilon}") for epsilon in EPSILONS),
        Part("none", "no noise"),
    ),
    paper={},
    settings={**SHORT, **CIFAR},
    score="late",
    pairs=(),
    notes=("The guarantee is of the means, for one sample; updates carry none.",),
)
