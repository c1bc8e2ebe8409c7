"""How time and memory of a round grow, along one axis at a time.

The axes are clients per round, clients in all, steps per client and model size. Every point is
measured in a process of its own, so that its peak memory is its own too, and a point that does not
fit in memory ends its axis but not the measurement.
"""

import json
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from fedmix import models
from fedmix.bench.machine import wait
from fedmix.core.errors import BadInput
from fedmix.core.rng import stream
from fedmix.core.signals import heard
from fedmix.data.federated import FederatedData, HeldOut
from fedmix.data.ragged import Ragged
from fedmix.experiment.presets import experiment
from fedmix.models import initialised
from fedmix.report.tables import Column, Table
from fedmix.training.engines import Vectorised
from fedmix.training.federation import Federation
from fedmix.training.settings import Training

INPUTS, CLASSES, BATCH, ROWS = 784, 10, 10, 2000


class Point(NamedTuple):
    """Size of a federation: `clients` of `population` a round, `steps` each, an MLP of `width`."""

    clients: int = 10
    population: int = 1000
    steps: int = 5
    width: int = 64


AXES: dict[str, tuple[int, ...]] = {
    "clients": (1, 3, 10, 30, 100, 300, 1000),
    "population": (100, 1000, 10_000, 100_000),
    "steps": (1, 3, 10, 30, 100, 300),
    "width": (16, 64, 256, 1024, 4096),
}
TITLES = {
    "clients": "clients per round",
    "population": "clients in all",
    "steps": "steps per client",
    "width": "width of the model",
}


@dataclass(frozen=True)
class Growth:
    """Result at one point of an axis.

    `seconds`, `low` and `high` are median, minimum and maximum of a round's time; `setup_s` is the
    time up to the end of the first round.
    """

    axis: str
    value: int
    algorithm: str
    seconds: float
    low: float
    high: float
    setup_s: float
    peak_mib: float
    parameters: int
    device: str = "cpu"
    repeats: int = 1


def points(axis: str) -> list[tuple[int, Point]]:
    """Values of an axis, each with all other sizes at their defaults; BadInput if it is unknown."""
    if axis not in AXES:
        raise BadInput(f"axis {axis!r} is unknown; choose among {', '.join(AXES)}")
    return [(value, Point()._replace(**{axis: value})) for value in AXES[axis]]


def federation(point: Point, algorithm: str, device: str) -> Federation:
    """Make a federation of that size.

    Clients hold rows of one small array, so that many clients cost an index and no samples.
    """
    spec = experiment("digits", algorithm)
    rng, samples = stream(0, "bench"), point.steps * BATCH
    x = rng.standard_normal((ROWS, INPUTS), dtype=np.float32)
    y = rng.integers(0, CLASSES, ROWS)
    flat = np.arange(point.population * samples) % ROWS
    clients = Ragged(flat, np.arange(point.population + 1) * samples)
    return Federation(
        initialised(lambda: models.mlp(INPUTS, CLASSES, point.width), seed=0),
        FederatedData(x, y, clients, HeldOut(x[:1], y[:1]), CLASSES, name="random data"),
        spec.build_objective(),
        Training(point.clients, batch_size=BATCH, lr=0.001, momentum=spec.training.momentum),
        exchange=spec.build_exchange(),
        engine=Vectorised(device=device),
    )


def measure(point: Point, algorithm: str, device: str, repeats: int) -> Growth:
    """Time `repeats` rounds, after a first one that includes exchange and compilation."""
    before, started = peak_memory(), time.perf_counter()
    built = federation(point, algorithm, device)
    # the last round, which would be evaluated, is never run
    rounds = built.run(repeats + 2, evaluate_every=repeats + 2)
    next(rounds)
    wait(built.device)
    times = [time.perf_counter()]
    for _ in range(repeats):
        next(rounds)
        wait(built.device)
        times.append(time.perf_counter())
    seconds = np.diff(times).tolist()
    cuda = built.device.type == "cuda"
    memory = torch.cuda.max_memory_allocated(built.device) if cuda else peak_memory() - before
    return Growth(
        axis="",
        value=0,
        algorithm=algorithm,
        seconds=statistics.median(seconds),
        low=min(seconds),
        high=max(seconds),
        setup_s=times[0] - started,
        peak_mib=memory / 2**20,
        parameters=sum(p.numel() for p in built.params.values()),
        device=built.device.type,
        repeats=repeats,
    )


def table(grown: Sequence[Growth]) -> Table:
    """Every point, below its axis and algorithm."""
    names = (Column(name, right=False, wrap=True) for name in ("axis", "value"))
    return Table(
        [*names, *map(Column, ("seconds", "range", "before", "MiB"))],
        [
            [
                f"{g.algorithm}, {TITLES[g.axis]}",
                f"{g.value:,}",
                f"{g.seconds:.3f}",
                f"{g.low:.3f}–{g.high:.3f}",
                f"{g.setup_s:.1f} s",
                f"{g.peak_mib:.0f}",
            ]
            for g in grown
        ],
        gap=2,
        grouped=True,
    )


def peak_memory() -> int:
    """Peak memory of this process, in bytes."""
    status = Path("/proc/self/status")
    if status.is_file():  # on Linux children inherit ru_maxrss, but not VmHWM
        [line] = [line for line in status.read_text().splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) << 10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


def sweep(
    axes: Sequence[str],
    algorithms: Sequence[str],
    device: str,
    repeats: int,
    limit: float,
    listen: Callable[[str], None] = lambda _: None,
) -> Iterator[Growth | str]:
    """Measure all points, smallest first.

    Args:
        axes: Names of axes.
        algorithms: Names of algorithms.
        device: The device, such as "cpu" or "cuda".
        repeats: Number of timed rounds at each point.
        limit: Seconds; a point that takes longer is the last of its axis.
        listen: Function that is told what is being measured.

    Yields:
        The result of each point, or a string that says why an axis ends early.

    Raises:
        BadInput: An axis is unknown, or a number is out of range.
    """
    if repeats < 1:
        raise BadInput(f"--repeats {repeats}: at least one is needed")
    if not limit > 0:
        raise BadInput(f"--limit {limit}: give a number of seconds above 0")
    todo = [(axis, algorithm, points(axis)) for axis in axes for algorithm in algorithms]
    for axis, algorithm, values in todo:
        for value, point in values:
            listen(f"{algorithm}, {TITLES[axis]}: {value:,}")
            done = _apart(point, algorithm, device, repeats)
            if isinstance(done, str):
                yield f"{algorithm}, {TITLES[axis]}: ended before {value:,}: {done}"
                break
            yield replace(done, axis=axis, value=value)
            if done.setup_s + done.repeats * done.seconds > limit and value != values[-1][0]:
                yield (
                    f"{algorithm}, {TITLES[axis]}: ended at {value:,}, "
                    f"which took over {limit:g} s (--limit)"
                )
                break


def _apart(point: Point, algorithm: str, device: str, repeats: int) -> Growth | str:
    """Run `measure` in a process of its own; a string says why there is no result."""
    command = [
        sys.executable,
        "-m",
        "fedmix.bench.scale",
        json.dumps([point, algorithm, device, repeats]),
    ]
    with _started(command) as process:
        out, messages = process.communicate()
    last = (messages.strip().splitlines() or [""])[-1]
    if process.returncode == BadInput.exit_code:
        raise BadInput(last)
    if process.returncode < 0:
        return "its process was killed, perhaps for lack of memory"
    return last if process.returncode else Growth(**json.loads(out))


@contextmanager
def _started(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Start a process and kill it at the end of the block.

    It has a session of its own, so that Ctrl-C does not reach it. A Ctrl-C while it starts is
    raised as soon as the process is known.
    """
    stop = False

    def note() -> None:
        nonlocal stop
        stop = True

    with heard([signal.SIGINT], note):
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    with process:
        try:
            if stop:
                raise KeyboardInterrupt
            yield process
        finally:
            process.kill()


def _answer(question: str) -> None:
    """Entry point of the other process."""
    point, *how = json.loads(question)
    try:
        done = measure(Point(*point), *how)
    except BadInput as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    print(json.dumps(asdict(done)))


if __name__ == "__main__":
    _answer(sys.argv[1])
