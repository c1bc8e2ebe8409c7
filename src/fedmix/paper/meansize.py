"""Number of samples M_k averaged into one mean (the paper's fig:meansize).

The HTML report shows the means themselves.
"""

from typing import Any

from fedmix.paper.base import TITLES, PaperTable, Part

NUMBERS = {
    "femnist-naivemix": (85.7, 86.3, 86.2, 86.1, 85.9),
    "femnist-fedmix": (86.0, 85.7, 86.4, 86.2, 86.5),
    "cifar10-naivemix": (79.6, 77.9, 79.1, 77.1, 77.4),
    "cifar10-fedmix": (81.4, 79.9, 80.4, 79.5, 81.2),
}


def averaged(m: int) -> dict[str, Any]:
    """Return the settings for means of m samples.

    A client with fewer than m samples sends nothing, since a smaller mean would reveal more.
    """
    return {"exchange.m": m, "exchange.cutoff": m}


def _row(preset: str, algorithm: str) -> Part:
    title = {"femnist": "FEMNIST", "cifar10": "CIFAR-10"}[preset]
    return Part(f"{preset}-{algorithm}", f"{title}, {TITLES[algorithm]}", preset, algorithm)


TABLE = PaperTable(
    name="mean-size",
    title="Test accuracy after the target round by M_k, the samples averaged into a mean",
    source="fig:meansize",
    rows=tuple(
        _row(preset, algorithm)
        for preset in ("femnist", "cifar10")
        for algorithm in ("naivemix", "fedmix")
    ),
    columns=(
        *(Part(str(m), f"M = {m}", settings=averaged(m)) for m in (5, 10, 20, 50)),
        Part("all", "M = all"),
    ),
    paper=NUMBERS,
    pairs=(("femnist-fedmix", "femnist-naivemix"), ("cifar10-fedmix", "cifar10-naivemix")),
    notes=("Clients with fewer than M samples send no mean (only FEMNIST has such).",),
)
