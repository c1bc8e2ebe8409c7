"""The main comparison: nine algorithms on three data sets (the paper's tab:main and fig:main)."""

from fedmix.paper.base import PAIRS, PaperTable, Part, algorithms
from fedmix.paper.metrics import ROUNDS

# For FEMNIST, CIFAR-10 and CIFAR-100: accuracy after 200, 500 and 500 rounds, and rounds to 80, 70
# and 40 %.
NUMBERS = {
    "globalmix": (88.2, 8, 88.2, 85, 61.4, 54),
    "fedavg": (85.3, 26, 73.8, 283, 50.4, 101),
    "localmix": (82.8, 28, 73.0, 267, 54.8, 91),
    "naivemix": (85.9, 23, 77.4, 198, 53.8, 85),
    "fedmix": (86.5, 18, 81.2, 162, 56.7, 34),
    "fedprox": (84.6, 29, 77.3, 266, 51.2, 79),
    "localmix+prox": (84.1, 39, 74.1, 314, 54.0, 90),
    "naivemix+prox": (85.7, 37, 76.7, 230, 53.1, 74),
    "fedmix+prox": (86.0, 32, 78.9, 223, 54.5, 63),
}

COLUMNS = (
    Part("femnist", "FEMNIST, round 200", preset="femnist"),
    Part("femnist-rounds", "FEMNIST, rounds to 80 %", preset="femnist", metric=ROUNDS),
    Part("cifar10", "CIFAR-10, round 500", preset="cifar10"),
    Part("cifar10-rounds", "CIFAR-10, rounds to 70 %", preset="cifar10", metric=ROUNDS),
    Part("cifar100", "CIFAR-100, round 500", preset="cifar100"),
    Part("cifar100-rounds", "CIFAR-100, rounds to 40 %", preset="cifar100", metric=ROUNDS),
)

TABLE = PaperTable(
    name="main",
    title="Test accuracy after the target round, and rounds to the target accuracy",
    source="tab:main, fig:main",
    rows=algorithms(*NUMBERS),
    columns=COLUMNS,
    paper=NUMBERS,
    notes=(
        "Global Mixup and LocalMix draw λ from Beta(1, 1): the paper's fixed λ (table lambda) "
        "cannot give its 88.2.",
    ),
    pairs=(*PAIRS, ("fedmix+prox", "fedprox")),
)
