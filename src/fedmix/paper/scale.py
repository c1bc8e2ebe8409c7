"""The same experiments at a size that a laptop finishes in minutes.

They show that everything runs; they reproduce nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedmix.experiment.spec import Experiment

WARNING = (
    "SMALL SCALE: fewer rounds, clients and samples, and narrower models; not comparable "
    "with the paper's numbers"
)


@dataclass(frozen=True)
class Small:
    """How the experiments of a data set shrink.

    Attributes:
        rounds: The most rounds.
        clients: N and K are divided by this.
        samples: M_k and the cut-off are divided by this.
        settings: Further settings, by dotted path.
    """

    rounds: int
    clients: int
    samples: int
    settings: Mapping[str, Any]


VGG = {"data.samples_per_client": 60, "model.widths": (8, 16, 16, 32, 32, 32), "model.hidden": 64}
SMALL = {
    "cifar10": Small(10, 3, 1, VGG),
    "cifar100": Small(5, 3, 1, VGG),
    "femnist": Small(10, 3, 3, {"data.local_share": 0.34, "engine.compile": False}),
    "shakespeare": Small(5, 10, 1, {"data.cap": 150, "model.hidden": 32}),
}


def small(experiment: Experiment) -> Experiment:
    """Return the experiment at small scale.

    >>> from fedmix.experiment.presets import experiment
    >>> shrunk = small(experiment("cifar10", "fedmix"))
    >>> shrunk.rounds, shrunk.data.clients, shrunk.training.clients_per_round
    (10, 20, 5)
    """
    how, training, exchange = SMALL[experiment.data.name], experiment.training, experiment.exchange
    changes: dict[str, Any] = {
        "rounds": min(experiment.rounds, how.rounds),
        "data.clients": _part(experiment.data.clients, how.clients),
        "training.clients_per_round": _part(training.clients_per_round, how.clients),
    }
    if exchange is not None:
        changes["exchange.cutoff"] = _part(exchange.cutoff, how.samples)
        if isinstance(exchange.m, int):
            changes["exchange.m"] = _part(exchange.m, how.samples)
    return experiment.with_settings({**changes, **how.settings})


def _part(number: int, divisor: int) -> int:
    return max(1, round(number / divisor))
