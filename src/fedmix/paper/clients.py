"""Number of clients, with the same number of samples each (the paper's tab:clientsdiff)."""

from fedmix.paper.base import PaperTable, Part, algorithms

NUMBERS = {
    "globalmix": (86.3, 89.2, 88.2),
    "fedavg": (65.8, 73.4, 73.8),
    "localmix": (46.9, 71.4, 73.0),
    "naivemix": (62.2, 75.1, 77.4),
    "fedmix": (68.5, 76.4, 81.2),
}


def clients(n: int, k: int) -> Part:
    """Return the column of n clients with 833 samples each, k of them in a round."""
    settings = {"data.clients": n, "training.clients_per_round": k, "data.samples_per_client": 833}
    return Part(str(n), f"N = {n}", settings=settings)


TABLE = PaperTable(
    name="clients",
    title="Test accuracy after 500 rounds on CIFAR-10 by number of clients N",
    source="tab:clientsdiff",
    rows=algorithms(*NUMBERS),
    columns=(clients(20, 5), clients(40, 10), Part("60", "N = 60")),
    paper=NUMBERS,
    notes=(
        "K is a quarter of N throughout. N = 60 is the main setting, with all 50,000 images: 833 "
        "or 834 a client.",
    ),
)
