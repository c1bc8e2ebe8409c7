"""Small made-up data and models for tests."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedmix import Federation, models
from fedmix.core.types import Batch, Params
from fedmix.data import FederatedData, HeldOut, Ragged, from_arrays
from fedmix.data.transforms import Images, OneHot, Transform
from fedmix.models import Model
from fedmix.training.aggregation import Updates
from fedmix.training.batches import Resident
from fedmix.training.engines import Engine, Runner, Sequential, Vectorised, Work

RAGGED = (23, 7, 40, 1, 16)
ENGINES: tuple[Engine, Engine] = (Sequential(), Vectorised())
NAMES = [engine.name for engine in ENGINES]


def small_vgg() -> nn.Sequential:
    return models.vgg(classes=10, widths=(4, 4, 8, 8, 8, 8), hidden=16, dropout=0.1)


def small_lstm() -> nn.Sequential:
    return models.charlstm(classes=12, embedding=4, hidden=8)


def small_lenet() -> nn.Sequential:
    return models.lenet(classes=10)


SHAPES: dict[str, tuple[Any, tuple[int, ...], int]] = {
    "digits_cnn": (models.digits_cnn, (1, 8, 8), 10),
    "lenet": (small_lenet, (1, 28, 28), 10),
    "vgg": (small_vgg, (3, 32, 32), 10),
    "charlstm": (small_lstm, (9, 12), 12),
}


@dataclass(frozen=True)
class Exactly:
    """Another transform in float64, so that rounding cannot push a step over a kink of a ReLU or a
    max-pool.
    """

    inner: Transform

    @property
    def pad(self) -> int:
        return self.inner.pad

    def units(self, raw: Tensor) -> Tensor:
        return self.inner.units(raw).double()

    def normalise(self, x: Tensor) -> Tensor:
        return self.inner.normalise(x)

    def noise(self, shape: tuple[int, ...], rng: np.random.Generator) -> Tensor:
        return self.inner.noise(shape, rng).double()


def federated(
    kind: str,
    sizes: tuple[int, ...] = RAGGED,
    *,
    pad: int = 2,
    seed: int = 0,
    private: bool = False,
) -> FederatedData:
    """Random samples in the shape a model of SHAPES takes, for clients of the given sizes."""
    rng = np.random.default_rng(seed)
    _, shape, classes = SHAPES[kind]
    total, tests = sum(sizes), 20
    transform: Transform
    if kind == "charlstm":
        x = rng.integers(0, classes, (total + tests, shape[0])).astype(np.uint8)
        transform = OneHot(classes)
    else:
        x = rng.integers(0, 256, (total + tests, *shape[1:], shape[0])).astype(np.uint8)
        transform = Images((0.5,) * shape[0], (0.25,) * shape[0], pad=pad)
    y = rng.integers(0, classes, total + tests)
    clients = Ragged.of(np.split(rng.permutation(total), np.cumsum(sizes)[:-1]))
    return FederatedData(
        x[:total],
        y[:total],
        clients,
        HeldOut(x[total:], y[total:]),
        classes,
        transform,
        private=private,
        name="synthetic",
    )


def arrays(n: int = 12, width: int = 4, classes: int = 3, clients: int = 2) -> FederatedData:
    """Vectors as they are, dealt out in equal parts."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((n, width)), rng.integers(0, classes, n)
    return from_arrays(x, y, np.array_split(np.arange(n), clients), (x, y), classes=classes)


def one_after_another(sizes: Sequence[int]) -> list[np.ndarray[Any, Any]]:
    """Rows of clients of these sizes: the first holds the first ones, and so on."""
    return np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])


class Listening:
    """A runner that notes its work, and has another do it."""

    def __init__(self, inner: Runner) -> None:
        self.inner, self.work = inner, list[Work]()

    def run_round(self, data: Resident, work: Work) -> Iterator[Updates]:
        self.work.append(work)
        yield from self.inner.run_round(data, work)


def listen(federation: Federation) -> list[Work]:
    """The work that a federation's runner gets from now on."""
    federation.runner = listening = Listening(federation.runner)
    return listening.work


def model_and_batch(
    kind: str, B: int, *, seed: int = 0, means: int = 1
) -> tuple[Model, Params, Batch]:
    """A model with He weights and a random batch for it, in float64."""
    build, shape, classes = SHAPES[kind]
    model = Model(models.initialised(build, seed))
    params = {name: p.double() for name, p in model.init().items()}
    g = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=g, dtype=torch.float64)

    def labels(n: int) -> Tensor:
        return torch.softmax(normal(n, classes), -1)

    hard = torch.nn.functional.one_hot(torch.randint(classes, (B,), generator=g), classes).double()
    batch = Batch(
        x=normal(B, *shape),
        y=hard,
        mask=torch.ones(B, dtype=torch.float64),
        key=torch.tensor(12345),
        mean_x=normal(means, *shape),
        mean_y=labels(means),
    )
    return model, params, batch
