"""The server averages m entries of the pool into one (the paper's tab:mean_average)."""

from fedmix.paper.base import PaperTable, Part, sweep

TABLE = PaperTable(
    name="server-average",
    title="Test accuracy of FedMix after 500 rounds on CIFAR-10 where the server averages m means "
    "into one",
    source="tab:mean_average",
    rows=sweep("m = {}", "exchange.average", 1, 4, 10),
    columns=(Part("accuracy", "round 500"),),
    paper={"1": (81.2,), "4": (81.6,), "10": (78.4,)},
    pairs=(("4", "1"), ("10", "1")),
)
