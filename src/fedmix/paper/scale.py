"""The same experiments at a size that a laptop trains in minutes each.

Models are small, samples and rounds few. What a table varies, it varies here too, so that the
direction of a trend shows; the numbers are not the paper's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedmix.experiment.spec import Experiment

WARNING = (
    "SMALL SCALE: smaller models, less data and fewer rounds; a trend's direction may be compared "
    "with the paper's, its numbers may not"
)


@dataclass(frozen=True)
class Small:
    """How the experiments of a data set shrink.

    Attributes:
        said: What a reader has to know, in a sentence.
        rounds: The most rounds.
        target: The accuracy to which rounds are counted.
        clients: The most clients; K shrinks in proportion to N.
        epochs: E is divided by this.
        share: A client's share of its samples is multiplied by this.
        layers: The number of layers before mixed hidden states is divided by this.
        settings: Further settings, by dotted path.
    """

    said: str
    rounds: int
    target: float
    clients: int
    epochs: int = 1
    share: float = 1.0
    layers: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)


CNN = {"model.name": "cnn", "model.initialise": "he", "data.augment": False, "evaluate_every": 2}
SMALL = {
    "cifar10": Small(
        "CIFAR-10 has 30 % of each client's samples, a CNN of four layers, no augmentation and "
        "half the k; rounds count to 35 %.",
        rounds=80, target=0.35, clients=60, share=0.3, layers=2, settings=CNN,
    ),
    "cifar100": Small(
        "CIFAR-100 has a fifth of the local epochs, a CNN of four layers and no augmentation; "
        "rounds count to 15 %.",
        rounds=80, target=0.15, clients=100, epochs=5, layers=2, settings=CNN,
    ),
    "femnist": Small(
        "FEMNIST has half the local epochs and at most 100 clients; rounds count to 75 %.",
        rounds=80, target=0.75, clients=100, epochs=2,
        settings={"evaluate_every": 2},
    ),
    "shakespeare": Small(
        "Shakespeare has 20 roles, of each the first 500 windows, and LSTM layers of 64.",
        rounds=30, target=0.25, clients=20, settings={"data.cap": 500, "model.hidden": 64},
    ),
}  # fmt: skip


def small(experiment: Experiment) -> Experiment:
    """Return the experiment at small scale.

    >>> from fedmix.experiment.presets import experiment
    >>> shrunk = small(experiment("cifar10", "fedmix"))
    >>> shrunk.rounds, shrunk.data.clients, shrunk.data.local_share, shrunk.model.name
    (80, 60, 0.3, 'cnn')
    """
    how, data, training = SMALL[experiment.data.name], experiment.data, experiment.training
    clients = min(data.clients, how.clients)
    changes: dict[str, Any] = {
        "rounds": min(experiment.rounds, how.rounds),
        "target": how.target,
        "data.clients": clients,
        "training.clients_per_round": _part(training.clients_per_round, data.clients / clients),
        "training.epochs": _part(training.epochs, how.epochs),
    }
    if experiment.takes("data.local_share"):
        changes["data.local_share"] = round(data.local_share * how.share, 6)
    if experiment.objective.layer:
        changes["objective.layer"] = _part(experiment.objective.layer, how.layers)
    return experiment.with_settings({**changes, **how.settings})


def _part(number: int, divisor: float) -> int:
    return max(1, round(number / divisor))
