"""Your own server step in 10 lines: half a step towards the clients' average, beside FedAdam.

python examples/own_server_step.py [--rounds 10]
"""

import argparse
from dataclasses import dataclass

from fedmix import Federation, Supervised, Training, data, models
from fedmix.core.types import Params
from fedmix.models import initialised
from fedmix.server_steps import FedAdam, FedAvg, ServerStep


@dataclass(frozen=True)
class Halfway(ServerStep):
    """w ← w + share·(Σ p_k w_k − w). A step with a state says in `init` what it begins with."""

    share: float = 0.5

    def __call__(self, state: Params, weights: Params, mean: Params) -> tuple[Params, Params]:
        return state, {n: w + self.share * (mean[n] - w) for n, w in weights.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Server steps on digits.")
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    training = Training(clients_per_round=5, epochs=2, batch_size=10, lr=0.01, momentum=0.9)
    steps: dict[str, ServerStep] = {
        "FedAvg": FedAvg(),
        "Halfway": Halfway(),
        "FedAdam": FedAdam(lr=0.03),
    }
    for name, server in steps.items():
        net = initialised(models.digits_cnn, seed=0)
        federation = Federation(net, data.digits(), Supervised(), training, server=server)
        *_, last = federation.run(rounds, evaluate_every=rounds)
        assert last.metrics is not None
        print(f"{name}: accuracy {100 * last.metrics['accuracy']:.1f} % after {last.round} rounds")


if __name__ == "__main__":
    main()
