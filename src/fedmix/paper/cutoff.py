"""A cut-off below which clients send no means (the paper's tab:threshold and its table of λ)."""

from fedmix.paper.base import PaperTable, sweep

LAMBDAS = (0.05, 0.1, 0.2)
SETTINGS = {"data.clients": 300, "training.clients_per_round": 30}

TABLE = PaperTable(
    name="cutoff",
    title="Test accuracy of FedMix after 200 rounds on FEMNIST with 300 clients, by λ and cut-off",
    source="tab:threshold and the table of λ beside it",
    rows=sweep("λ = {}", "objective.lam", *LAMBDAS),
    columns=sweep("cut-off {}", "exchange.cutoff", 1, 100, 150, 200),
    paper={
        "0.05": (82.8, 83.3, None, None),
        "0.1": (82.8, None, 83.1, None),
        "0.2": (83.0, None, None, 82.9),
    },
    preset="femnist",
    settings=SETTINGS,
    pairs=(),
    notes=(
        "For each cut-off the paper prints the best λ only: 0.2, 0.05, 0.1 and 0.2.",
        "A cut-off counts training samples. K = 30, as the paper's K/N for FEMNIST is 0.1.",
    ),
)
