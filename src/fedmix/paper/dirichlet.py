"""Label distributions drawn from a Dirichlet distribution (the paper's tab:heterogenity_skewed)."""

from fedmix.paper.base import PaperTable, algorithms, sweep

NUMBERS = {
    "fedavg": (83.9, 87.6),
    "globalmix": (91.1, 91.1),
    "localmix": (84.0, 88.0),
    "naivemix": (85.0, 88.2),
    "fedmix": (86.4, 88.4),
}

TABLE = PaperTable(
    name="dirichlet",
    title="Test accuracy after 500 rounds on CIFAR-10 with labels spread by a Dirichlet "
    "distribution",
    source="tab:heterogenity_skewed",
    rows=algorithms(*NUMBERS),
    columns=sweep("α = {}", "data.alpha", 0.2, 0.5),
    paper=NUMBERS,
    settings={"data.partition": "dirichlet"},
)
