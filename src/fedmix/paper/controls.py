"""Random noise or a client's own means in place of others' means (the paper's tab:mixbase)."""

from fedmix.paper import main
from fedmix.paper.base import PaperTable, algorithms

# As in tab:main: accuracy, rounds; FEMNIST, CIFAR-10, CIFAR-100.
NUMBERS = {
    "naivemix": (85.9, 23, 77.4, 198, 53.8, 85),
    "randommix": (86.1, 23, 77.9, 201, 51.2, 105),
    "localmeans": (85.5, 21, 73.5, 233, 51.0, 87),
    "fedmix": (86.5, 18, 81.2, 162, 56.7, 34),
}

TABLE = PaperTable(
    name="controls",
    title="FedMix and NaiveMix beside mixup with random noise and with a client's own means",
    source="tab:mixbase",
    rows=algorithms(*NUMBERS),
    columns=main.COLUMNS,
    paper=NUMBERS,
    pairs=(
        ("naivemix", "randommix"),
        ("naivemix", "localmeans"),
        ("fedmix", "randommix"),
        ("fedmix", "localmeans"),
    ),
    notes=(
        "Noise is standard normal after normalisation, with uniform labels; the paper does not "
        "say what its noise was.",
    ),
)
