"""The mixing ratio λ of FedMix, and of Global Mixup with the same λ (the paper's tab:lambda)."""

from fedmix.paper.base import TITLES, PaperTable, Part, algorithms, sweep

NUMBERS = {"globalmix": (79.4, 80.4, 81.1, 63.6), "fedmix": (81.2, 80.5, 77.7, 67.1)}

TABLE = PaperTable(
    name="lambda",
    title="Test accuracy after 500 rounds on CIFAR-10 by mixing ratio λ",
    source="tab:lambda",
    rows=(
        Part(
            "globalmix",
            f"{TITLES['globalmix']}, fixed λ",
            algorithm="globalmix",
            settings={"objective.alpha": None},
        ),
        *algorithms("fedmix"),
    ),
    columns=sweep("λ = {}", "objective.lam", 0.05, 0.1, 0.2, 0.5),
    paper=NUMBERS,
    pairs=(("fedmix", "globalmix"),),
)
