"""Your own objective in 20 lines: received means as extra samples, compared with FedAvg.

Run it with

    python examples/own_objective.py [--rounds 10]
"""

import argparse
from dataclasses import dataclass

from torch import Tensor

from fedmix import Federation, Objective, Proximal, Supervised, Training, data, models
from fedmix.core.types import Batch, Params
from fedmix.models import Model, initialised
from fedmix.objectives import Needs, batch_mean


@dataclass(frozen=True)
class ExtraSample(Objective):
    """(1−λ)·ℓ(f(x), y) + λ·ℓ(f(x̄), ȳ): the received mean is one more sample, unmixed."""

    lam: float

    @property
    def needs(self) -> Needs:
        return Needs(means="batch")  # one received mean comes with every batch

    def __call__(self, model: Model, params: Params, anchor: Params, batch: Batch) -> Tensor:  # noqa: ARG002
        assert batch.mean_x is not None
        assert batch.mean_y is not None
        own = model.loss(model(params, batch.x, batch.key), batch.y)
        mean = model.loss(model(params, batch.mean_x, batch.key), batch.mean_y)
        return (1 - self.lam) * batch_mean(own, batch.mask) + self.lam * mean.mean()


def main() -> None:
    parser = argparse.ArgumentParser(description="FedAvg and an objective of one's own on digits.")
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    training = Training(clients_per_round=5, epochs=5, batch_size=10, lr=0.01, momentum=0.9)
    objectives: dict[str, Objective] = {
        "FedAvg": Supervised(),
        "ExtraSample": ExtraSample(lam=0.1),
        "ExtraSample + Proximal": ExtraSample(lam=0.1) + Proximal(mu=0.1),
    }
    for name, objective in objectives.items():
        federation = Federation(
            initialised(models.digits_cnn, seed=0), data.digits(), objective, training
        )
        *_, last = federation.run(rounds, evaluate_every=rounds)
        assert last.metrics is not None
        print(f"{name}: accuracy {100 * last.metrics['accuracy']:.1f} % after {last.round} rounds")


if __name__ == "__main__":
    main()
