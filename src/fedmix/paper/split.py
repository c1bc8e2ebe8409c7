"""Means of half a client's samples, grouped at random or by class (tab:dataset_split)."""

from fedmix.paper.base import PaperTable, Part, sweep

TABLE = PaperTable(
    name="split",
    title="Test accuracy of FedMix after 500 rounds on CIFAR-10 with means of half a client's "
    "samples",
    source="tab:dataset_split",
    rows=sweep("{} split", "exchange.split", "random", "class"),
    columns=(Part("accuracy", "round 500"),),
    paper={"random": (81.2,), "class": (78.8,)},
    settings={"exchange.m": 0.5},
    pairs=(("random", "class"),),
)
