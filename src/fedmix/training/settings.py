"""Settings of training: how many clients train in a round, and how each of them does."""

import math
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np

from fedmix.core.errors import BadInput
from fedmix.core.types import Array
from fedmix.core.validation import is_number, is_whole, number, positive, share, shown, whole


@dataclass(frozen=True)
class Training:
    """Settings of local training by SGD, and the number of clients per round.

    Args:
        clients_per_round: K, the number of clients that train in a round; or a share of all
            clients, above 0 and below 1; or "all".
        epochs: E, how often a client goes through its samples in a round.
        batch_size: B, the samples per local step.
        lr: The learning rate η of the first round.
        lr_decay: After every round, the learning rate is multiplied by this.
        momentum: Momentum, below 1. It starts from zero in every round.
        weight_decay: Weight decay.

    Raises:
        BadInput: A value is outside its range.
    """

    clients_per_round: int | float | Literal["all"]
    epochs: int = 1
    batch_size: int = 10
    lr: float = 0.01
    lr_decay: float = 1.0
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if self.clients_per_round != "all":
            self._check_per_round()
        for name in ("epochs", "batch_size"):
            whole(f"training.{name}", getattr(self, name))
        for name in ("lr", "lr_decay"):
            positive(f"training.{name}", getattr(self, name))
        share("training.momentum", self.momentum)
        if not 0 <= number("training.weight_decay", self.weight_decay) < math.inf:
            raise BadInput(
                f"training.weight_decay={self.weight_decay} must not be negative or infinite"
            )

    def _check_per_round(self) -> None:
        name, given = "training.clients_per_round", cast(Any, self.clients_per_round)
        if isinstance(given, float | np.floating) and given == 1:
            raise BadInput(f'{name}=1.0 could be one client or all; give 1 or "all"')
        if not is_whole(given) and not (is_number(given) and 0 < given < 1):
            raise BadInput(
                f"{name}={shown(given)} is no number of clients; give a whole number from 1 on, a "
                'share below 1, or "all"'
            )

    def per_round(self, clients: int) -> int:
        """Return how many of so many clients train in a round; of a share, at least one.

        >>> [Training(clients_per_round=given).per_round(30) for given in (5, 0.1, 0.001, "all")]
        [5, 3, 1, 30]
        """
        given = self.clients_per_round
        if isinstance(given, str):
            return clients
        return int(given) if given >= 1 else max(1, round(given * clients))

    def check_clients(self, clients: int, name: str) -> None:
        """Raise BadInput if fewer than K clients exist; `name` is the name of the data."""
        if self.per_round(clients) > clients:
            raise BadInput(
                f"training.clients_per_round={self.clients_per_round} is more than the {clients} "
                f"clients of {name}"
            )

    def rate(self, round_: int) -> float:
        """Return the learning rate of a round, counted from 0."""
        return self.lr * self.lr_decay**round_

    def reach(self, samples: int) -> float:
        """Return the sum of the factors with which a client's gradients enter its update, over lr.

        With momentum, the gradient of a step enters that step and all later ones, each time
        multiplied by β once more: Σ_{s=1..S} (1 − βˢ) / (1 − β), which is S without momentum.
        """
        steps, beta = self.steps(samples), self.momentum
        return float(steps - beta * (1 - beta**steps) / (1 - beta)) / (1 - beta)

    def steps_of_all(self, sizes: Array, rounds: int) -> int:
        """Return the expected number of local steps of so many rounds, for clients of these sizes.

        >>> Training(clients_per_round=2, epochs=3, batch_size=4).steps_of_all(np.array([4, 5]), 10)
        90
        """
        each = self.epochs * np.ceil(sizes / self.batch_size).mean()
        return round(rounds * self.per_round(len(sizes)) * float(each))

    def steps(self, samples: int) -> int:
        """Return the number of local steps of a client with this many samples."""
        # int(), since numpy's small integers overflow
        return int(self.epochs) * -(-samples // int(self.batch_size))
