"""Your own test metrics: the recall of each digit, and how far confidence is from accuracy.

python examples/own_metrics.py [--rounds 5]
"""

import argparse

from torch import Tensor

from fedmix import Federation, FedMix, Training, data, models
from fedmix.models import initialised


def recall(outputs: Tensor, targets: Tensor) -> dict[str, float]:
    """Of the test samples of each class, the share that is named so."""
    named, true = outputs.argmax(1), targets.argmax(1)
    return {str(c): float((named[true == c] == c).float().mean()) for c in range(10)}


def overconfidence(outputs: Tensor, targets: Tensor) -> float:
    """Mean confidence less accuracy."""
    sure, named = outputs.softmax(1).max(1)
    return float(sure.mean() - (named == targets.argmax(1)).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description="Metrics of one's own on digits.")
    parser.add_argument("--rounds", type=int, default=5)
    federation = Federation(
        initialised(models.digits_cnn, seed=0),
        data.digits(),
        FedMix(lam=0.1, expand="logits"),
        Training(clients_per_round=5, epochs=2, batch_size=10, lr=0.01, momentum=0.9),
        metrics={"recall": recall, "overconfidence": overconfidence},
    )
    *_, last = federation.run(parser.parse_args().rounds)
    for name, value in (last.metrics or {}).items():
        print(f"{name}: {value:.3f}")


if __name__ == "__main__":
    main()
