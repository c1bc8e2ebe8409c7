"""What an engine is: it maps the local update over a round's clients, and does nothing else."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from torch import Tensor

from fedmix.core.types import Array, Batch, Params
from fedmix.objectives.base import Objective
from fedmix.training.advice import advice
from fedmix.training.batches import Received, Resident
from fedmix.training.draws import ClientPlan
from fedmix.training.server import Updates


class Work(NamedTuple):
    """A round's work: whose update, with which draws, from which weights, at which learning rate,
    with which means.
    """

    round: int
    clients: Array
    plans: list[ClientPlan]
    params: Params
    lr: float
    pool: Received | None


class Engine(Protocol):
    """`run_round` yields every client's update once, in chunks and order of the engine's own
    choosing.
    """

    def run_round(self, data: Resident, work: Work) -> Iterator[Updates]: ...


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
    """The sentence for a step that left the numbers."""
    return f"{what} is NaN or infinite; its input was {describe(batch)}; {advice(objective)}"
