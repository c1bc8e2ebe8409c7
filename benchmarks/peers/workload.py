"""The common workload: clients, samples, batches and initial weights.

It uses NumPy only, so that all environments can import it. Draws come from streams keyed by (seed,
purpose, round, client), by the rule of fedmix (`core/rng.py`, `training/draws.py`): every program
sees the same clients and batches, and their weights can be compared at the end.
"""

import math
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
SEED = 0


@dataclass(frozen=True)
class Workload:
    """FedAvg over `clients`, `per_round` of them a round.

    `warmup` rounds are not counted, `rounds` are. `parts` are the shapes of the model's trained
    parameters in the order of `fedmix.models`; those of one axis are biases. `whole` are the local
    steps of all clients in a whole run, as those of the preset that the workload is taken from; a
    program that chooses how to train by a run's length is told it.
    """

    name: str
    clients: int
    per_round: int
    epochs: int
    shape: tuple[int, ...]
    classes: int
    warmup: int
    rounds: int
    whole: int
    parts: tuple[tuple[int, ...], ...]
    samples: int = 100
    batch: int = 10
    lr: float = 0.01
    momentum: float = 0.9
    lam: float = 0.05

    @property
    def steps(self) -> int:
        """Local steps of a client in a round."""
        return self.epochs * self.samples // self.batch

    @property
    def whole_rounds(self) -> int:
        """Rounds of a whole run."""
        return self.whole // (self.per_round * self.steps)

    def stream(self, purpose: str, *where: int) -> np.random.Generator:
        return np.random.Generator(
            np.random.PCG64(np.random.SeedSequence([SEED, zlib.crc32(purpose.encode()), *where]))
        )

    def data(self) -> tuple[Array, Array]:
        """Inputs (N, samples, *shape) and labels (N, samples).

        To be learnable, pictures are noise on one picture of 4x4 tiles per class. Of a text, random
        letters as one-hot rows, the label is the last letter.
        """
        rng = self.stream("data")
        if len(self.shape) == 2:
            letters = rng.integers(0, self.classes, (self.clients, self.samples, self.shape[0]))
            return np.eye(self.classes, dtype=np.float32)[letters], letters[..., -1]
        y = rng.integers(0, self.classes, (self.clients, self.samples))
        channels, height, width = self.shape
        tiles = rng.standard_normal((self.classes, channels, 4, 4), dtype=np.float32)
        pictures = tiles.repeat(height // 4, axis=2).repeat(width // 4, axis=3)
        noise = rng.standard_normal((*y.shape, *self.shape), dtype=np.float32)
        return (noise + pictures[y]) / 2, y

    def initial(self) -> list[Array]:
        """Weights from N(0, 2 / fan_in) and zero biases, in PyTorch's layout and order.

        The last layer's weights are a tenth of that, so that the loss begins near log(classes).
        """
        rng = self.stream("initial")
        arrays: list[Array] = []
        for shape in self.parts:
            if len(shape) == 1:
                arrays.append(np.zeros(shape, np.float32))
                continue
            scale = np.float32(math.sqrt(2 / math.prod(shape[1:])))
            arrays.append(scale * rng.standard_normal(shape, dtype=np.float32))
        arrays[-2] *= np.float32(0.1)
        return arrays

    def chosen(self, round_: int) -> list[int]:
        """The clients of a round, counted from 0."""
        return [
            int(k)
            for k in self.stream("clients", round_).choice(
                self.clients, self.per_round, replace=False
            )
        ]

    def rows(self, round_: int, client: int) -> Array:
        """The client's samples in each step, (steps, batch): one permutation per epoch."""
        rng = self.stream("batches", round_, client)
        return np.concatenate([rng.permutation(self.samples) for _ in range(self.epochs)]).reshape(
            self.steps, self.batch
        )

    def senders(self, round_: int, client: int) -> Array:
        """FedMix: whose mean the client mixes with in each step, (steps,)."""
        pool = self.stream("shuffle", 1).permutation(self.clients)
        return pool[
            self.stream("means", round_, client).integers(0, self.clients, (self.steps, 1))[:, 0]
        ]


def with_biases(*kernels: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    return tuple(part for kernel in kernels for part in (kernel, kernel[:1]))


WORKLOADS = {
    work.name: work
    for work in (
        Workload(
            "lenet", clients=50, per_round=10, epochs=2, shape=(1, 28, 28), classes=62, warmup=2,
            rounds=16, whole=420_000,
            parts=with_biases((6, 1, 5, 5), (16, 6, 5, 5), (120, 400), (84, 120), (62, 84)),
        ),
        Workload(
            "vgg", clients=60, per_round=15, epochs=1, shape=(3, 32, 32), classes=10, warmup=1,
            rounds=2, whole=1_260_000,
            parts=with_biases(
                (32, 3, 3, 3), (64, 32, 3, 3), (128, 64, 3, 3), (128, 128, 3, 3), (256, 128, 3, 3),
                (256, 256, 3, 3), (512, 4096), (512, 512), (10, 512),
            ),
        ),
        Workload(
            "lstm", clients=30, per_round=10, epochs=1, shape=(80, 84), classes=84, warmup=1,
            rounds=6, whole=1_800_000, samples=40, lr=0.1,
            parts=(
                (84, 8), (1024, 8), (1024, 256), (1024,), (1024, 256), (1024, 256), (1024,),
                (84, 256), (84,),
            ),
        ),
    )
}  # fmt: skip
