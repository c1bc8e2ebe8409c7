"""Number of local epochs (the paper's tab:epochsdiff)."""

from fedmix.paper.base import PaperTable, algorithms, sweep

NUMBERS = {
    "fedavg": (74.4, 73.8, 80.7, 78.9),
    "localmix": (63.7, 73.0, 74.7, 80.0),
    "naivemix": (72.0, 77.4, 81.0, 82.6),
    "fedmix": (75.8, 81.2, 83.0, 82.5),
}

TABLE = PaperTable(
    name="epochs",
    title="Test accuracy after 500 rounds on CIFAR-10 by local epochs E",
    source="tab:epochsdiff",
    rows=algorithms(*NUMBERS),
    columns=sweep("E = {}", "training.epochs", 1, 2, 5, 10),
    paper=NUMBERS,
)
