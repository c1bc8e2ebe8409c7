"""What the scripts share: their arguments, the clock around rounds, and the result file."""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import numpy as np
from workload import WORKLOADS, Array, Workload

IMPORTED = time.time()


@dataclass
class Job:
    """One program on one workload.

    Call `start` before the first round, `tick` after each, then `save`.
    """

    workload: Workload
    algorithm: str
    threads: int
    workers: int
    device: str
    out: Path
    variant: str | None = None
    seconds: list[float] = field(default_factory=list)
    began: float = 0.0
    startup: float = 0.0
    first: Sequence[Array] = ()

    @property
    def total(self) -> int:
        return self.workload.warmup + self.workload.rounds

    def start(self) -> None:
        self.began = time.time()
        self.startup = self.began - float(os.environ.get("PEERS_STARTED", IMPORTED))

    def tick(self, weights: Callable[[], Sequence[Array]]) -> None:
        """Note the end of a round.

        After the first round, copies the weights; the time of that is not counted.
        """
        self.seconds.append(time.time() - self.began)
        if not self.first:
            self.first = [w.copy() for w in weights()]
        self.began = time.time()

    def save(self, variant: str, weights: Sequence[Array], packages: Sequence[str]) -> None:
        """Write the record, and the weights after the first and the last round.

        benchmarks/README.md lists the fields of a record.
        """
        work, rounds = self.workload, self.seconds
        if len(rounds) != self.total:
            raise SystemExit(f"{variant}: {len(rounds)} rounds were timed, not {self.total}")
        if [w.shape for w in weights] != [w.shape for w in work.initial()]:
            raise SystemExit(f"{variant}: its model is another one: {[w.shape for w in weights]}")
        per_step = [1000 * seconds / work.steps for seconds in rounds[work.warmup :]]
        record = {
            "workload": work.name, "algorithm": self.algorithm,
            "variant": self.variant or variant,
            "ms_per_step": statistics.median(per_step), "low": min(per_step), "high": max(per_step),
            "device": self.device, "clients": work.per_round, "batch": work.batch,
            "steps": work.steps, "repeats": work.rounds, "threads": self.threads or None,
            "workers": self.workers, "default": not self.threads, "startup_s": self.startup,
            "warmup_s": sum(rounds[: work.warmup]), "parameters": sum(w.size for w in weights),
            "versions": {"python": platform.python_version()}
            | {name: version(name) for name in packages},
        }  # fmt: skip
        self.out.write_text(json.dumps(record, indent=1) + "\n")
        np.savez(self.out.with_suffix(".npz"), *self.first, *weights)


def job() -> Job:
    """Read the job from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", choices=list(WORKLOADS), default="lenet")
    parser.add_argument("--algorithm", choices=["fedavg", "fedmix"], default="fedavg")
    parser.add_argument("--threads", type=int, default=1, help="of each worker; 0: as it is")
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        help="processes (FedJAX: devices) among which clients are divided",
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--variant", help="the program's name in the results, if it is another")
    parser.add_argument("--out", type=Path, required=True, help="a .json file")
    args = parser.parse_args()
    return Job(
        WORKLOADS[args.workload], args.algorithm, args.threads, args.workers, args.device, args.out,
        args.variant,
    )  # fmt: skip
