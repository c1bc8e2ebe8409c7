"""Share of its data that a client has (the paper's tab:datadiff)."""

from fedmix.paper.base import PaperTable, Part, algorithms, sweep

NUMBERS = {
    "globalmix": (71.4, 86.1, 88.2),
    "fedavg": (61.8, 74.7, 73.8),
    "localmix": (43.7, 60.3, 73.0),
    "naivemix": (51.5, 69.6, 77.4),
    "fedmix": (65.2, 77.8, 81.2),
}

TABLE = PaperTable(
    name="local-data",
    title="Test accuracy after 500 rounds on CIFAR-10 by share of local data",
    source="tab:datadiff",
    rows=algorithms(*NUMBERS),
    columns=(*sweep("share {}", "data.local_share", 0.2, 0.5), Part("1.0", "share 1.0")),
    paper=NUMBERS,
)
