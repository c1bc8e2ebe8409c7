"""Number of classes per client (the paper's tab:iidness)."""

from fedmix.paper.base import PaperTable, Part, algorithms, sweep

NUMBERS = {
    "globalmix": (88.2, 90.7, 90.9, 91.4),
    "fedavg": (73.8, 84.2, 86.8, 89.3),
    "localmix": (73, 83.3, 86.4, 89.1),
    "naivemix": (77.4, 84.5, 87.7, 89.4),
    "fedmix": (81.2, 85.1, 87.9, 89.1),
}

TABLE = PaperTable(
    name="classes",
    title="Test accuracy after 500 rounds on CIFAR-10 by classes per client",
    source="tab:iidness",
    rows=algorithms(*NUMBERS),
    columns=(
        *sweep("{} classes", "data.classes_per_client", 2, 3, 5),
        Part("10", "10 classes (iid)", settings={"data.partition": "iid"}),
    ),
    paper=NUMBERS,
)
