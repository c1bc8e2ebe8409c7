"""What an engine is: it maps the local update over a round's clients, and does nothing else."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from fedmix.core.devices import device_named
from fedmix.core.errors import BadInput
from fedmix.core.types import Array, Batch, Params
from fedmix.core.validation import is_whole, shown
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
    """A round's work: whose update, with which draws, weights, learning rate, means and facts."""

    round: int
    clients: Array
    plans: list[ClientPlan]
    params: Params
    lr: float
    pool: Received | None
    known: Known = Known()


class Runner(Protocol):
    """An engine at work on one model, objective and training."""

    def run_round(self, data: Resident, work: Work) -> Iterator[Updates]:
        """Every client's update once, in chunks and in an order of the engine's own choosing."""
        ...


@dataclass(frozen=True, kw_only=True)
class Engine(ABC):
    """How and where clients run: settings, and `start`, which makes what runs them.

    Args:
        device: where clients train, such as "cpu" or "cuda".
        precision: how a GPU multiplies: "tf32", "float32" or "bf16".
        processes: on a CPU, among how many processes a round's clients are divided.
    """

    name: ClassVar[str]
    device: str = "cpu"
    precision: Precision = "tf32"
    processes: int = 1

    @abstractmethod
    def start(self, model: Model, objective: Objective, training: Training) -> Runner:
        """What runs rounds of this model, which is on the engine's device already."""

    def check(self) -> torch.device:
        """The engine's device.

        Raises:
            BadInput: where there is none, or the settings do not go together.
        """
        called(self.precision)
        if not is_whole(self.processes):
            raise BadInput(
                f"engine.processes={shown(self.processes)} must be at least 1, and a whole number"
            )
        device = device_named(self.device)
        if self.processes > 1 and device.type != "cpu":
            raise BadInput(
                f"engine.processes={shown(self.processes)} with device {self.device!r}: leave it "
                "at 1 on a GPU"
            )
        check_device(self.precision, device)
        return device


def describe(batch: Batch) -> str:
    """What a batch looked like, for an error message."""

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
    """The error text for a step whose loss or update is NaN or infinite."""
    return f"{what} is NaN or infinite; its input was {describe(batch)}; {advice(objective)}"
