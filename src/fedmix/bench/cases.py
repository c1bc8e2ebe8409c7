"""The workloads: the presets' models and settings on random data of the right shapes, made in
memory.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from fedmix import models
from fedmix.bench.machine import cores
from fedmix.bench.plain import PlainCharLSTM, PlainLoop
from fedmix.core.errors import BadInput
from fedmix.core.rng import stream
from fedmix.data.cifar import CIFAR10
from fedmix.data.digits import MOMENTS as DIGITS_MOMENTS
from fedmix.data.federated import FederatedData, Ragged
from fedmix.data.femnist import CLASSES as CHARACTERS
from fedmix.data.femnist import MOMENTS as FEMNIST_MOMENTS
from fedmix.data.images import normaliser
from fedmix.data.shakespeare import CLASSES as LETTERS
from fedmix.data.shakespeare import WINDOW
from fedmix.data.transforms import OneHot, Transform
from fedmix.experiment.presets import experiment
from fedmix.kernels.precision import Precision
from fedmix.models import initialised
from fedmix.training.federation import Federation
from fedmix.training.settings import Training

RATE = 0.001  # small, so that no weights leave the numbers; it does not change the time


class Workload(NamedTuple):
    """A model with random data for it.

    `preset` gives clients per round, batch size, momentum, λ and the exchange.

    `loop_model` is the module that the plain loop trains, where people would write another one.
    `steps` are a client's local steps in a round, on a CPU and on a GPU: enough to time, and few
    enough to wait for.
    """

    preset: str
    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int
    transform: Transform
    steps: tuple[int, int]
    loop_model: Callable[[], nn.Module] | None = None


WORKLOADS = {
    "digits": Workload(
        "digits", models.digits_cnn, (8, 8, 1), 10, normaliser("standard", DIGITS_MOMENTS), (20, 20)
    ),
    "lenet": Workload(
        "femnist",
        models.lenet,
        (28, 28, 1),
        CHARACTERS,
        normaliser("standard", FEMNIST_MOMENTS, invert=True),
        (20, 20),
    ),
    "vgg": Workload(
        "cifar10",
        models.vgg,
        (32, 32, 3),
        10,
        normaliser("standard", CIFAR10.moments, pad=4),
        (4, 20),
    ),
    "charlstm": Workload(
        "shakespeare", models.charlstm, (WINDOW,), LETTERS, OneHot(LETTERS), (2, 20), PlainCharLSTM
    ),
}

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"engine": "sequential"},  # which the loop takes the place of
    "sequential": {"engine": "sequential"},
    "vectorised": {"engine": "vectorised", "compile": False},
    "compiled": {"engine": "vectorised", "compile": True},
    "processes": {"engine": "vectorised", "compile": True, "processes": cores()},
}


class Size(NamedTuple):
    """How large a round is, and how exact.

    None is the preset's; `ragged` gives clients from 20 % to 180 % of the mean size.
    """

    clients: int | None = None
    batch: int | None = None
    steps: int | None = None
    ragged: bool = False
    precision: Precision = "tf32"


def federation(
    workload: Workload, algorithm: str, variant: str, size: Size, device: str
) -> Federation:
    """A federation whose clients all take part in every round, trained by `variant`."""
    spec = experiment(workload.preset, algorithm)
    given = {"clients_per_round": size.clients, "batch_size": size.batch}
    changed = {name: value for name, value in given.items() if value is not None}
    training = replace(spec.build_training(), epochs=1, lr=RATE, **changed)
    steps = workload.steps[device.startswith("cuda")] if size.steps is None else size.steps
    if steps < 1:
        raise BadInput(f"--steps {steps}: at least one local step is needed")
    module = initialised(workload.model, seed=0)
    built = Federation(
        module,
        random_data(workload, _sizes(training, steps, size.ragged)),
        spec.build_objective(),
        training,
        exchange=spec.build_exchange(),
        device=device,
        precision=size.precision,
        **VARIANTS[variant],
    )
    if variant == "plain":
        built.engine = PlainLoop(
            (workload.loop_model or workload.model)(),
            built.objective,
            training,
            built.device,
            size.precision,
        )
    return built


def _sizes(training: Training, steps: int, ragged: bool) -> list[int]:
    """Samples of each client."""
    mean, clients = steps * training.batch_size, training.clients_per_round
    shares = np.linspace(0.2, 1.8, clients) if ragged else np.ones(clients)
    return [max(1, round(mean * share)) for share in shares]


def random_data(workload: Workload, sizes: list[int]) -> FederatedData:
    """Random samples for clients of the given sizes, the same in every run."""
    rng, count = stream(0, "bench"), sum(sizes)
    highest = workload.classes if isinstance(workload.transform, OneHot) else 256
    x = rng.integers(0, highest, (count, *workload.shape), dtype=np.uint8)
    y = rng.integers(0, workload.classes, count)
    clients = Ragged.cut(np.arange(count), sizes)
    return FederatedData(
        x, y, clients, x[:1], y[:1], workload.classes, workload.transform, name="random data"
    )
