"""Mixing hidden states instead of inputs (the paper's fig:hidden, appendix E: curves only)."""

from fedmix.paper.base import TITLES, PaperTable, Part, algorithms

TABLE = PaperTable(
    name="hidden",
    title="Test accuracy after 500 rounds on CIFAR-10 where hidden states after k layers are mixed",
    source="fig:hidden",
    rows=(
        *algorithms("fedavg", "localmix", "hidden-naivemix", "hidden-fedmix"),
        Part(
            "hidden-fedmix-4",
            "FedMix, hidden states (k = 4)",
            algorithm="hidden-fedmix",
            settings={"objective.layer": 4},
        ),
        Part("fedmix", f"{TITLES['fedmix']} on inputs", algorithm="fedmix"),
    ),
    columns=(Part("accuracy", "round 500"),),
    paper={"fedavg": (73.8,), "localmix": (73.0,), "fedmix": (81.2,)},
    pairs=(("fedmix", "hidden-fedmix"), ("fedmix", "hidden-fedmix-4"), ("hidden-fedmix", "fedavg")),
    notes=(
        "The paper prints no numbers for hidden states. It says: they beat the existing methods "
        "but not FedMix on inputs; k = 4 "
        "learns fastest and ends like k = 2. The numbers beside FedAvg, LocalMix and FedMix are "
        "those of its main table.",
    ),
)
