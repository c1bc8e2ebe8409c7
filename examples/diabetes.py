"""A regression on scikit-learn's diabetes data: FedAvg, NaiveMix and FedMix, clients by age.

Run it with

    python examples/diabetes.py
"""

from fedmix import (
    Exchange,
    Federation,
    FedMix,
    NaiveMix,
    Objective,
    Supervised,
    Training,
    data,
    models,
)
from fedmix.models import initialised

ALGORITHMS: dict[str, Objective] = {
    "FedAvg": Supervised(),
    "NaiveMix": NaiveMix(lam=0.1),
    "FedMix": FedMix(lam=0.1, expand="logits"),
}


def main() -> None:
    patients = data.diabetes()
    training = Training(clients_per_round=3, epochs=2, batch_size=10, lr=0.02)
    print(f"{len(patients.clients)} clients; always predicting the mean gives an error of about 1")
    for name, objective in ALGORITHMS.items():
        exchange = Exchange() if objective.needs.means else None
        net = initialised(lambda: models.mlp(10, 1), seed=0, how="torch")
        federation = Federation(net, patients, objective, training, exchange=exchange)
        *_, last = federation.run(rounds=30, evaluate_every=30)
        assert last.metrics is not None
        print(f"{name:9} mean squared error after {last.round} rounds: {last.metrics['mse']:.3f}")


if __name__ == "__main__":
    main()
