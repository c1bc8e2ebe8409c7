"""Benchmark workloads: models and settings of the presets, on random data made in memory."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
from torch import nn

from fedmix import models
from fedmix.bench import functional, plain
from fedmix.bench.functional import functional_loss
from fedmix.bench.plain import LoopLoss, PlainCharLSTM, PlainLoop, loop_loss
from fedmix.core.devices import cores
from fedmix.core.errors import BadInput
from fedmix.core.rng import stream
from fedmix.data.cifar import CIFAR10
from fedmix.data.digits import MOMENTS as DIGITS_MOMENTS
from fedmix.data.federated import FederatedData, HeldOut
from fedmix.data.femnist import CLASSES as CHARACTERS
from fedmix.data.femnist import MOMENTS as FEMNIST_MOMENTS
from fedmix.data.images import normaliser
from fedmix.data.ragged import Ragged
from fedmix.data.shakespeare import CLASSES as LETTERS
from fedmix.data.shakespeare import WINDOW
from fedmix.data.transforms import OneHot, Transform
from fedmix.experiment.presets import experiment
from fedmix.experiment.spec import Experiment
from fedmix.kernels.precision import Precision
from fedmix.models import Model, initialised
from fedmix.objectives import Objective
from fedmix.training.engines import Engine, Sequential, Vectorised
from fedmix.training.engines.choice import Choice, choose
from fedmix.training.federation import Federation
from fedmix.training.settings import Training

RATE = 0.001  # small, so that weights stay finite; it does not change the time


class Workload(NamedTuple):
    """A model with random data for it.

    Args:
        preset: Name of the preset that gives clients per round, batch size, momentum, λ and the
            exchange.
        model: Function that makes the model.
        shape: Shape of a stored sample.
        classes: Number of classes.
        transform: Conversion of stored samples to model inputs.
        steps: Local steps of a client in a round, on a CPU and on a GPU: enough to time, few enough
            to wait for.
        preset_steps: About how many local steps a client makes in a round of the preset, with all
            of its data: so `default` is chosen.
        loop_model: Model of the plain loop, if people would write another one there.
    """

    preset: str
    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int
    transform: Transform
    steps: tuple[int, int]
    preset_steps: int
    loop_model: Callable[[], nn.Module] | None = None


WORKLOADS = {
    "digits": Workload(
        "digits",
        models.digits_cnn,
        (8, 8, 1),
        10,
        normaliser("standard", DIGITS_MOMENTS),
        (20, 20),
        40,
    ),
    "lenet": Workload(
        "femnist",
        models.lenet,
        (28, 28, 1),
        CHARACTERS,
        normaliser("standard", FEMNIST_MOMENTS, invert=True),
        (20, 20),
        210,
    ),
    "vgg": Workload(
        "cifar10",
        models.vgg,
        (32, 32, 3),
        10,
        normaliser("standard", CIFAR10.moments, pad=4),
        (4, 20),
        168,
    ),
    "charlstm": Workload(
        "shakespeare",
        models.charlstm,
        (WINDOW,),
        LETTERS,
        OneHot(LETTERS),
        (2, 20),
        600,
        PlainCharLSTM,
    ),
}

DEFAULT = "default"  # what runs without flags do
VARIANTS: dict[str, Callable[..., Engine]] = {
    "plain": Sequential,  # a loop then replaces the engine
    DEFAULT: Vectorised,
    "functional": Sequential,
    "sequential": Sequential,
    "vectorised": partial(Vectorised, compile=False),
    "compiled": partial(Vectorised, compile=True),
    "processes": partial(Vectorised, compile=True),
}


class Loop(NamedTuple):
    """A loop of one's own.

    Args:
        loss: Makes its loss from an objective.
        known: The algorithms that it has.
    """

    loss: Callable[[Objective], LoopLoss]
    known: tuple[str, ...]


LOOPS = {
    "plain": Loop(loop_loss, plain.KNOWN),
    "functional": Loop(functional_loss, functional.KNOWN),
}


class Size(NamedTuple):
    """Size and precision of a round; None stands for the preset's value.

    `ragged` gives clients from 20 % to 180 % of the mean number of samples.
    """

    clients: int | None = None
    batch: int | None = None
    steps: int | None = None
    ragged: bool = False
    precision: Precision = "tf32"


def settings(
    workload: Workload, algorithm: str, size: Size, device: str
) -> tuple[Experiment, Training, int]:
    """Return the experiment, the training and the number of steps of a federation.

    Raises:
        BadInput: A number of clients, samples or steps is below 1.
    """
    spec = experiment(workload.preset, algorithm)
    given = {"clients_per_round": size.clients, "batch_size": size.batch}
    changed = {name: value for name, value in given.items() if value is not None}
    training = replace(spec.build_training(), epochs=1, lr=RATE, **changed)
    steps = workload.steps[device.startswith("cuda")] if size.steps is None else size.steps
    if steps < 1:
        raise BadInput(f"--steps {steps}: at least one local step is needed")
    return spec, training, steps


def chosen(workload: Workload, algorithm: str, size: Size, device: str) -> Choice:
    """Return how a run of the workload's preset trains by default, with as many clients a round."""
    spec, training, _ = settings(workload, algorithm, size, device)
    if device.startswith("cuda"):
        return Choice(compile=True, processes=1)
    clients = training.per_round(1)
    steps = spec.rounds * clients * workload.preset_steps
    recurrent = Model(workload.model()).recurrent
    return choose(steps, clients, cores(), recurrent=recurrent)


def federation(
    workload: Workload, algorithm: str, variant: str, size: Size, device: str
) -> Federation:
    """Make a federation whose clients all take part in every round, trained by `variant`.

    Raises:
        BadInput: A number of clients, samples or steps is below 1.
    """
    spec, training, steps = settings(workload, algorithm, size, device)
    module = initialised(workload.model, seed=0)
    engine = VARIANTS[variant](device=device, precision=size.precision)
    if variant == DEFAULT:
        engine = engine.settled(chosen(workload, algorithm, size, device).compile)
    built = Federation(
        module,
        random_data(workload, _sizes(training, steps, size.ragged)),
        spec.build_objective(),
        training,
        exchange=spec.build_exchange(),
        engine=engine,
    )
    if variant in LOOPS:
        built.runner = PlainLoop(
            (workload.loop_model or workload.model)(),
            LOOPS[variant].loss(built.objective),
            training,
            built.device,
            size.precision,
        )
    return built


def _sizes(training: Training, steps: int, ragged: bool) -> list[int]:
    """Number of samples of each client."""
    mean, clients = steps * training.batch_size, training.per_round(1)
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
        x,
        y,
        clients,
        HeldOut(x[:1], y[:1]),
        workload.classes,
        workload.transform,
        name="random data",
    )
