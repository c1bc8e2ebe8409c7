"""How a federation trains: who takes part in a round and how each client steps."""

import math
from dataclasses import dataclass

from fedmix.core.errors import BadInput
from fedmix.core.validation import number, whole


@dataclass(frozen=True)
class Training:
    """K clients a round, E local epochs in batches of B, SGD with momentum and weight decay,
    learning rate η·decay^round.
    """

    clients_per_round: int
    epochs: int = 1
    batch_size: int = 10
    lr: float = 0.01
    lr_decay: float = 1.0
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        for name in ("clients_per_round", "epochs", "batch_size"):
            whole(f"training.{name}", getattr(self, name))
        for name in ("lr", "lr_decay"):
            if not 0 < number(f"training.{name}", getattr(self, name)) < math.inf:
                raise BadInput(f"training.{name}={getattr(self, name)} must be positive and finite")
        if not 0 <= number("training.momentum", self.momentum) < 1:
            raise BadInput(f"training.momentum={self.momentum} is outside [0, 1)")
        if not 0 <= number("training.weight_decay", self.weight_decay) < math.inf:
            raise BadInput(
                f"training.weight_decay={self.weight_decay} must not be negative or infinite"
            )

    def check_clients(self, clients: int, name: str) -> None:
        """Refuse to choose more clients a round than the data of that name has."""
        if self.clients_per_round > clients:
            raise BadInput(
                f"training.clients_per_round={self.clients_per_round} is more than the {clients} "
                f"clients of {name}"
            )

    def rate(self, round_: int) -> float:
        """The learning rate of a round, counted from 0."""
        return self.lr * self.lr_decay**round_

    def reach(self, samples: int) -> float:
        """The sum of the factors with which a client's gradients enter its update, over lr.

        The gradient of a step counts once for each step from its own on, each time with another
        factor of momentum: Σ_{s=1..S} (1 − βˢ) / (1 − β), which is S without momentum.
        """
        steps, beta = self.steps(samples), self.momentum
        return float(steps - beta * (1 - beta**steps) / (1 - beta)) / (1 - beta)

    def steps(self, samples: int) -> int:
        """Local steps of a client with that many samples."""
        return int(self.epochs) * -(
            -samples // int(self.batch_size)
        )  # small integers of numpy overflow
