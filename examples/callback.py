"""Callbacks: print every round, halve the rate when the loss rises, stop when it is good enough.

python examples/callback.py [--rounds 30] [--enough 0.8]
"""

import argparse

from fedmix import Federation, FedMix, Round, Training, data, models
from fedmix.models import initialised


def log(done: Round, federation: Federation) -> None:
    assert done.metrics is not None
    rate = federation.training.rate(done.round - 1) * federation.lr_scale
    accuracy = 100 * done.metrics["accuracy"]
    print(f"round {done.round}: loss {done.local_loss:.3f}, accuracy {accuracy:.1f} %, rate {rate}")


class Careful:
    """Halves the learning rate after a round whose local loss rose."""

    def __init__(self) -> None:
        self.before = float("inf")

    def __call__(self, done: Round, federation: Federation) -> None:
        if done.local_loss > self.before:
            federation.lr_scale *= 0.5
        self.before = done.local_loss


def main() -> None:
    parser = argparse.ArgumentParser(description="Callbacks on digits.")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--enough", type=float, default=0.8, help="the accuracy to stop at")
    chosen = parser.parse_args()

    def enough(done: Round, federation: Federation) -> None:
        if done.metrics is not None and done.metrics["accuracy"] >= chosen.enough:
            federation.stop()

    federation = Federation(
        initialised(models.digits_cnn, seed=0),
        data.digits(),
        FedMix(lam=0.1, expand="logits"),
        Training(clients_per_round=5, epochs=2, batch_size=10, lr=0.01, momentum=0.9),
        callbacks=[log, Careful(), enough],
    )
    *_, last = federation.run(chosen.rounds)
    print(f"the last round was {last.round}")


if __name__ == "__main__":
    main()
