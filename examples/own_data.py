"""FedAvg and FedMix with your own arrays and your own model.

    python examples/own_data.py [--rounds 15] [--out runs]
    fedmix report runs

Copy this file and replace `load` and `Net`. Runs can be stopped by Ctrl-C and continue when they
are started again.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedmix import Exchange, Federation, FedMix, Supervised, Training, data, record
from fedmix.models import initialised

LENGTH, CLIENTS, CLASSES = 16, 12, 4
Array = np.ndarray[Any, Any]


def load(seed: int = 0) -> tuple[Array, Array, Array]:
    """Return inputs (n, ...), integer labels (n,), and the client of each sample (n,).

    Here: vibrations of machines, two kinds each.
    """
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(CLIENTS), 60)
    y = (owner + rng.integers(2, size=len(owner))) % CLASSES
    phase = rng.uniform(0, 2 * np.pi, size=(len(y), 1))
    waves = np.sin(2 * np.pi * (y[:, None] + 1) * np.linspace(0, 1, LENGTH) + phase)
    return waves + rng.normal(scale=0.5, size=waves.shape), y, owner


class Net(nn.Module):
    """Any module that takes a batch of inputs and returns a batch of `CLASSES` scores."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(LENGTH, 32), nn.Linear(32, CLASSES)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.second(self.dropout(torch.relu(self.first(x))))
        return scores


def main() -> None:
    parser = argparse.ArgumentParser(description="FedAvg and FedMix on your own arrays.")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    chosen = parser.parse_args()

    x, y, owner = load()
    x = (x - x.mean(0)) / x.std(0)  # FedMix shrinks inputs towards zero, so let zero be their mean
    test = np.random.default_rng(1).random(len(x)) < 0.2
    machines = data.from_arrays(
        x[~test],
        y[~test],
        clients=owner[~test],
        test=(x[test], y[test]),
        classes=CLASSES,
        private=True,  # refuse objectives that need raw samples of others
        name="machines",
    )
    training = Training(clients_per_round=3, epochs=5, batch_size=10, lr=0.1)
    for name, objective, exchange in (
        ("FedAvg", Supervised(), None),
        ("FedMix", FedMix(lam=0.1, expand="logits"), Exchange(m=20)),
    ):
        federation = Federation(
            initialised(Net, seed=0), machines, objective, training, exchange=exchange
        )
        summary = record(federation, chosen.out / f"machines-{name.lower()}", chosen.rounds)
        sent = (federation.traffic.up + federation.traffic.down) / 1e6
        print(
            f"{name}: accuracy {100 * summary['last']:.1f} % after {summary['rounds']} rounds, "
            f"{sent:.2f} MB sent"
        )


if __name__ == "__main__":
    main()
