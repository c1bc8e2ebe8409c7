"""Base classes of engines, which run the local update of a round's clients."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from fedmix.core.devices import device_named
from fedmix.core.types import Array, Batch, Params
from fedmix.kernels.precision import Precision, called, check_device
from fedmix.models.functional import Model
from fedmix.objectives.base import Objective
from fedmix.training.advice import advice
from fedmix.training.aggregation import Updates
from fedmix.training.batches import Received, Resident
from fedmix.training.draws import ClientPlan
from fedmix.training.known import Known
from fedmix.training.settings import Training


class Work(NamedTuple):
    """The work of a round.

    Args:
        round: The round, counted from 1.
        clients: The clients' numbers.
        plans: The draws of each client.
        params: The weights at the start of the round.
        lr: The learning rate.
        pool: The received means, if the objective uses them.
        known: Further facts about the clients.
    """

    round: int
    clients: Array
    plans: list[ClientPlan]
    params: Params
    lr: float
    pool: Received | None
    known: Known = Known()


class Runner(Protocol):
    """A started engine for one model, objective and training."""

    def run_round(self, data: Resident, work: Work) -> Iterator[Updates]:
        """Yield every client's update once, in chunks and in any order.

        Args:
            data: The training data on the engine's device.
            work: The work of the round.

        Raises:
            ClientFailure: A client's local update failed.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Engine(ABC):
    """Settings of how and where clients run; `start` makes the runner.

    Args:
        device: Where clients train, such as "cpu" or "cuda".
        precision: How a GPU multiplies: "tf32", "float32" or "bf16".
    """

    name: ClassVar[str]
    device: str = "cpu"
    precision: Precision = "tf32"

    def compiles(self, model: Model, steps: int = 0) -> bool:
        """Whether local steps are compiled in a run of that many, of all clients in all rounds."""
        del model, steps
        return False

    def settled(self, compiled: bool) -> "Engine":
        """Return the engine with what it leaves open decided: whether local steps are compiled."""
        del compiled
        return self

    @abstractmethod
    def start(self, model: Model, objective: Objective, training: Training) -> Runner:
        """Return the runner for this model, which is on the engine's device already."""

    def check(self) -> torch.device:
        """Check the settings and return the engine's device.

        Raises:
            BadInput: The device does not exist, or the settings do not work together.
        """
        called(self.precision)
        device = device_named(self.device)
        check_device(self.precision, device)
        return device


def describe(batch: Batch) -> str:
    """Describe the tensors of a batch for an error message: their shapes and ranges."""

    def looks(name: str, t: Tensor) -> str:
        t = t.detach().float()
        return f"{name} {tuple(t.shape)} in [{t.min():.3g}, {t.max():.3g}]"

    named = (
        ("x", batch.x),
        ("y", batch.y),
        ("mean_x", batch.mean_x),
        ("mean_y", batch.mean_y),
        ("partner_x", batch.partner_x),
    )
    return ", ".join(looks(name, t) for name, t in named if t is not None)


def diverged(batch: Batch, what: str, objective: Objective) -> str:
    """Return the error text for a step whose loss or update (`what`) is NaN or infinite."""
    return f"{what} is NaN or infinite; its input was {describe(batch)}; {advice(objective)}"
