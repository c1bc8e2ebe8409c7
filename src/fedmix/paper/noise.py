"""Gaussian noise on the means (the paper's tab:dp_mafl)."""

from fedmix.paper.base import PaperTable, Part, sweep
from fedmix.paper.meansize import averaged

TABLE = PaperTable(
    name="noise",
    title="Test accuracy of FedMix after 500 rounds on CIFAR-10 by noise σ on means of M samples",
    source="tab:dp_mafl",
    rows=tuple(Part(str(m), f"M = {m}", settings=averaged(m)) for m in (5, 10, 20)),
    columns=sweep("σ = {}", "exchange.noise", 0.0, 0.05, 0.075, 0.15, 0.3),
    paper={
        "5": (81.4, 80.1, 81.1, 78.7, 81.5),
        "10": (79.9, 80.8, 79.1, 79.4, 81.7),
        "20": (80.4, 80.5, 79.7, 80.7, 81.0),
    },
    pairs=(),
    notes=("σ is in units of pixels in [0, 1]; the paper does not say its unit.",),
)
