"""Settings of training: how many clients train in a round, and how each of them does."""

import math
from dataclasses import dataclass

from fedmix.core.errors import BadInput
from fedmix.core.validation import number, positive, share, whole


@dataclass(frozen=True)
class Training:
    """Settings of local training by SGD, and the number of clients per round.

    Args:
        clients_per_round: K, the number of clients that train in a round.
        epochs: E, how often a client goes through its samples in a round.
        batch_size: B, the samples per local step.
        lr: The learning rate η of the first round.
        lr_decay: After every round, the learning rate is multiplied by this.
        momentum: Momentum, below 1. It starts from zero in every round.
        weight_decay: Weight decay.

    Raises:
        BadInput: A value is outside its range.
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
            positive(f"training.{name}", getattr(self, name))
        share("training.momentum", self.momentum)
        if not 0 <= number("training.weight_decay", self.weight_decay) < math.inf:
            raise BadInput(
                f"training.weight_decay={self.weight_decay} must not be negative or infinite"
            )

    def check_clients(self, clients: int, name: str) -> None:
        """Raise BadInput if fewer than K clients exist; `name` is the name of the data."""
        if self.clients_per_round > clients:
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

    def steps(self, samples: int) -> int:
        """Return the number of local steps of a client with this many samples."""
        # int(), since numpy's small integers overflow
        return int(self.epochs) * -(-samples // int(self.batch_size))
