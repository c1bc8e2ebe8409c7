"""Accuracy on clients' own test samples, by client size (the paper's tab:lambda_sensitivity)."""

import math

from fedmix.paper import cutoff
from fedmix.paper.base import PaperTable, Part, sweep
from fedmix.paper.metrics import Metric, Protocol
from fedmix.report.load import RunRecord
from fedmix.training.evaluation import ClientScores

BINS = (
    ("small", "n < 100", 0, 99),
    ("medium", "100 ≤ n ≤ 199", 100, 199),
    ("large", "n > 199", 200, 2**62),
)


def _within(least: int, most: int, which: int) -> Metric:
    """Return the mean (0) or deviation (1) over clients with so many samples, as a metric."""

    def of(run: RunRecord, _: Protocol) -> float:
        if run.clients is None or run.clients.scores is None:
            return math.nan
        scores = ClientScores(run.clients.sizes, run.clients.scores)
        return 100 * scores.between(least, most)[which]

    return Metric(("mean of local accuracy, %", "deviation of local accuracy, %")[which], of)


TABLE = PaperTable(
    name="local-accuracy",
    title="Accuracy of FedMix on clients' own test samples by their size, FEMNIST with 300 clients",
    source="tab:lambda_sensitivity",
    rows=sweep("λ = {}", "objective.lam", *cutoff.LAMBDAS),
    columns=tuple(
        Part(f"{name}-{what}", f"{title}, {what}", metric=_within(least, most, which))
        for name, title, least, most in BINS
        for which, what in enumerate(("mean", "std"))
    ),
    paper={
        "0.05": (85.8, 15.1, 77.6, 14.8, 85.4, 9.3),
        "0.1": (81.1, 17.4, 76.4, 14.1, 86.2, 9.5),
        "0.2": (83.9, 16.2, 77.6, 14.8, 85.8, 10.0),
    },
    preset="femnist",
    settings=cutoff.SETTINGS,
    pairs=(),
    notes=("n counts training samples. Mean and deviation are over clients; ± is over seeds.",),
)
