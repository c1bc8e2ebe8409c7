"""Your own choice of clients: those with more samples more often, beside a uniform choice.

python examples/own_choice.py [--rounds 10]
"""

import argparse
from typing import Any

import numpy as np

from fedmix import Federation, Supervised, Training, data, models
from fedmix.models import initialised

Array = np.ndarray[Any, Any]


def by_size(round_: int, sizes: Array, count: int, rng: np.random.Generator) -> Array:  # noqa: ARG001
    """With probabilities that go with the numbers of samples.

    It draws from `rng` alone, so that the run can be repeated, and stopped and gone on with.
    """
    return rng.choice(len(sizes), count, replace=False, p=sizes / sizes.sum())


def main() -> None:
    parser = argparse.ArgumentParser(description="A choice of clients of one's own on digits.")
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    uneven = data.digits(partition="dirichlet", alpha=0.3)
    training = Training(clients_per_round=5, epochs=2, batch_size=10, lr=0.01, momentum=0.9)
    for name, choose in (("uniform", None), ("by size", by_size)):
        net = initialised(models.digits_cnn, seed=0)
        federation = Federation(net, uneven, Supervised(), training, choose=choose)
        *_, last = federation.run(rounds, evaluate_every=rounds)
        assert last.metrics is not None
        print(f"{name}: accuracy {100 * last.metrics['accuracy']:.1f} % after {last.round} rounds")


if __name__ == "__main__":
    main()
