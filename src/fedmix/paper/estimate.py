"""Estimates how long the paper's tables take here: number of local steps x measured step time."""

import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

from fedmix.bench.cases import WORKLOADS, Size, federation, random_data
from fedmix.bench.machine import wait
from fedmix.data.shakespeare import GAP
from fedmix.experiment.presets import PRESETS, experiment
from fedmix.experiment.sections import ModelSpec
from fedmix.experiment.spec import Experiment

STEPS, ROUNDS, ON_A_CPU = 2, 3, 4  # steps per round, timed rounds, and clients at once on a CPU
HOW = (
    "Estimated: the local steps of all runs, each as long as one measured here just now on random "
    "data ({device}, not compiled; "
    "on a GPU, and on a CPU if they are long, runs are compiled and faster). Testing is left out."
)
# Training samples of all clients. Those of FEMNIST and Shakespeare are LEAF's means per client
# (226.8 and 3,743.3), less what is held out.
SAMPLES: dict[str, Callable[[Any], float]] = {
    **dict.fromkeys(
        ("cifar10", "cifar100"),
        lambda data: (
            (data.clients * data.samples_per_client if data.samples_per_client else 50_000)
            * data.local_share
        ),
    ),
    "digits": lambda data: 1797 * (1 - data.test_share) * data.local_share,
    "femnist": lambda data: 226.8 * (1 - data.test_share) * data.local_share * data.clients,
    "shakespeare": lambda data: (
        (3743.3 if data.cap is None else min(3743.3, data.cap - GAP))
        * data.train_share
        * data.clients
    ),
}
MEASURED = {  # the benchmark's workload for each data set
    "cifar10": "vgg",
    "cifar100": "vgg",
    "digits": "digits",
    "femnist": "lenet",
    "shakespeare": "charlstm",
}


def client_steps(experiment: Experiment) -> float:
    """Return the local steps of all chosen clients in all rounds, with clients of mean size."""
    training = experiment.training
    samples = SAMPLES[experiment.data.name](experiment.data) / experiment.data.clients
    steps = training.epochs * -(-samples // training.batch_size)
    return float(experiment.rounds * experiment.per_round * steps)


def seconds(
    experiments: Iterable[Experiment], step: Callable[[str, ModelSpec, bool], float]
) -> float:
    """Return how long experiments take together.

    Args:
        experiments: The experiments.
        step: `step(data set, model, whether FedMix)` returns the seconds of one client's local
            step.
    """
    total = 0.0
    for one in experiments:
        name, model, spec = one.data.name, one.model, one.objective
        # hidden states take a second step
        each = step(name, model, spec.name == "fedmix") + (
            step(name, model, False) if spec.layer else 0.0
        )
        total += client_steps(one) * each
    return total


def measure(name: str, model: ModelSpec, fedmix: bool, device: str) -> float:
    """Return the seconds of one client's local step, measured with several clients at once.

    It is the minimum over some rounds, since other processes may use the machine.

    Args:
        name: Name of the data set.
        model: The model, an experiment's section.
        fedmix: Whether the algorithm is FedMix, else FedAvg.
        device: The device.
    """
    clients = ON_A_CPU if device == "cpu" else PRESETS[name].clients_per_round
    algorithm, size = "fedmix" if fedmix else "fedavg", Size(clients, steps=STEPS)
    workload = WORKLOADS[MEASURED[name]]
    spec = experiment(name, algorithm).model_copy(update={"model": model})
    samples = random_data(workload, [1])
    workload = workload._replace(model=lambda: spec.build_module(samples))
    built = federation(workload, algorithm, "vectorised", size, device)
    ends = []
    for _ in built.run(1 + ROUNDS):  # the first one warms up
        wait(built.device)
        ends.append(time.perf_counter())
    return min(end - start for start, end in pairwise(ends)) / (STEPS * clients)


def duration(seconds: float) -> str:
    """Return a duration as text, rounded to the precision of an estimate.

    >>> duration(40), duration(400), duration(40_000), duration(400_000)
    ('1 minute', '7 minutes', '11 hours', '4.6 days')
    """
    minutes, hours, days = (seconds / size for size in (60, 3600, 86400))
    if minutes < 1.5:
        return "1 minute"
    return (
        f"{minutes:.0f} minutes"
        if hours < 2
        else f"{hours:.0f} hours"
        if days < 2
        else f"{days:.1f} days"
    )
