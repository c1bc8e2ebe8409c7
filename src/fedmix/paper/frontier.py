"""What a guarantee for exchanged means costs: accuracy by ε, use of the means and their size M.

This table is not the paper's. It has the settings of `beyond` on CIFAR-10 with 2 classes. Images
are clipped to a norm and labels to 1; noise is what `calibrated` says (half of μ² for labels). A
head's statistics have the noise that one release of them needs.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from fedmix.experiment.spec import Experiment
from fedmix.paper.base import PaperTable, Part
from fedmix.paper.beyond import CIFAR, DRAWN, HEAD_ON, SHORT, variants
from fedmix.paper.metrics import HEAD
from fedmix.privacy.accounting import calibrated

EPSILONS = (1, 3, 10, 30, 100, 300, 1000, 3000)
SAMPLES = 250  # of a client, the smallest
SIZES = ("all", 20, 10, 5, 2)
FEATURES = 11.0  # norm of 120 features of mean square 1, rounded up
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
        how, head = plain.build_exchange(), plain.build_head()
        if column == "none":
            return plain
        if head is not None:
            noised = calibrated(replace(head.exchange, noise=1.0), float(column), SAMPLES)
            return plain.with_settings({"head.noise": rounded_up(noised.noise)})
        assert how is not None
        group = SAMPLES if how.m == "all" else int(how.m)
        noised = calibrated(how, float(column), group, nonnegative=True)
        assert noised.label_noise is not None
        return plain.with_settings({
            "exchange.noise": rounded_up(noised.noise),
            "exchange.label_noise": rounded_up(noised.label_noise),
        })  # fmt: skip


def head(name: str, title: str, **settings: Any) -> Part:
    """Return a row whose head's statistics are noised, and whose means are none."""
    settings = {**HEAD_ON, "head.clip": FEATURES, **settings}
    return Part(name, title, algorithm="fedavg", settings=settings, metric=HEAD)


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
        *(
            row
            for name, title, use in (
                ("drawn", "NaiveMix, λ drawn", {**DRAWN, **clipped(30.0)}),
                ("dim", "NaiveMix, λ drawn, clip 10", {**DRAWN, **clipped(10.0)}),
                ("naivemix", "NaiveMix, λ = 0.1", {**FIXED, **clipped(30.0)}),
            )
            for row in variants(name, title, "naivemix", use, *SIZES, shown=("all",))
        ),
        head("head", "FedAvg, head from statistics"),
        head("head-normalised", "FedAvg, features normalised, head", **{"model.normalise": True}),
    ),
    columns=(
        *(Part(str(epsilon), f"ε = {epsilon}") for epsilon in EPSILONS),
        Part("none", "no noise"),
    ),
    paper={},
    settings={**SHORT, **CIFAR},
    score="late",
    pairs=(),
    notes=(
        "The guarantee is of the means, or of a head's statistics beyond what the weights tell, "
        "for one sample and one release; updates carry none.",
    ),
)
