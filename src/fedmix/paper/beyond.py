"""What can be done with exchanged means beyond the paper: variants side by side, at laptop scale.

This table is not the paper's. Its settings train in minutes on a core: a small CNN, a third of the
data, no augmentation, 80 rounds. A run's number is the mean of its tests in rounds 60 to 80.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedmix.paper.base import TITLES, PaperTable, Part
from fedmix.paper.meansize import averaged
from fedmix.paper.metrics import HEAD

HEAD_ON = {"head.name": "lda", "head.since": 60}  # in what is late of 80 rounds
SIZES = (1, 2, 5, 10, 20)  # M; a client also may send one mean of all its samples
DRAWN = {"objective.lam": None, "objective.alpha": 1.0, "objective.per": "sample"}
LOGITS = {**DRAWN, "objective.expand": "logits"}
SHORT: dict[str, Any] = {
    "training.epochs": 2,
    "rounds": 80,
    "evaluate_every": 2,
    "target": None,
}
CIFAR: dict[str, Any] = {
    "data.local_share": 0.3,
    "data.augment": False,
    "model.name": "cnn",
    "model.initialise": "he",
}
# All of the data: there are 500 images of a class.
CIFAR100: dict[str, Any] = {
    **CIFAR,
    "data.local_share": 1.0,
    "data.clients": 60,
    "training.clients_per_round": 15,
}


def variants(
    name: str,
    title: str,
    algorithm: str,
    settings: Mapping[str, Any],
    *sizes: int | str,
    shown: tuple[int | str, ...] = (),
) -> tuple[Part, ...]:
    """Return a row for each M; those that are not `shown` run only if they are asked for."""
    return tuple(
        Part(
            f"{name}-{m}",
            f"{title}, M = {m}",
            algorithm=algorithm,
            settings={**settings, **({} if m == "all" else averaged(int(m)))},
            extra=m not in shown,
        )
        for m in sizes
    )


def plain(name: str, title: str, algorithm: str = "fedavg", **settings: Any) -> Part:
    """Return a row of an algorithm that exchanges no means; `__` in settings stands for a dot."""
    dotted = {path.replace("__", "."): value for path, value in settings.items()}
    return Part(name, title, algorithm=algorithm, settings=dotted)


def drawn(alpha: float) -> dict[str, Any]:
    """Return the settings of a λ drawn from Beta(α, α)."""
    return {**DRAWN, "objective.alpha": alpha}


def headed(of: Part) -> Part:
    """Return a row whose last layer is set from statistics, after the training of another row."""
    return replace(
        of,
        name=f"head-{of.name}",
        title=f"{of.title}, head from statistics",
        settings={**of.settings, **HEAD_ON},
        metric=HEAD,
        extra=False,
    )


ALL = ("all", 20, 10, 5, 2, 1)
TRAINED = (
    plain("fedavg", TITLES["fedavg"]),
    plain("fedrs", "FedRS", "fedrs"),
    plain("fedlc", "FedLC", "fedlc"),
    plain("normalised", "FedAvg, features normalised", model__normalise=True),
    plain("scaffold", "SCAFFOLD", "scaffold"),
    plain("fedadam", "FedAdam", server__name="fedadam"),
    plain("fedavgm", "FedAvgM", server__name="fedavgm"),
    plain("localmix", "LocalMix, λ drawn", "localmix"),
    plain("globalmix", "Global Mixup, λ drawn (raw data)", "globalmix"),
    *variants(
        "naivemix", "NaiveMix, λ = 0.1", "naivemix", {"objective.lam": 0.1}, *ALL, shown=("all", 5)
    ),
    *variants(
        "fedmix",
        "FedMix (logits), λ = 0.1",
        "fedmix-logits",
        {"objective.lam": 0.1},
        *ALL,
        shown=("all", 5),
    ),
    *variants(
        "drawn", "NaiveMix, λ drawn", "naivemix", DRAWN, *ALL, shown=("all", 20, 10, 5, 2, 1)
    ),
    *variants(
        "drawn-logits", "FedMix (logits), λ drawn", "fedmix-logits", LOGITS, *ALL, shown=(5, 2)
    ),
    *(
        row
        for alpha in (0.2, 0.5, 2.0)
        for row in variants(
            f"drawn-{alpha:g}", f"NaiveMix, λ from Beta({alpha:g})", "naivemix", drawn(alpha), *ALL
        )
    ),
    *(
        row
        for alpha in (0.2, 0.5, 2.0)
        for row in variants(
            f"drawn-logits-{alpha:g}",
            f"FedMix (logits), λ from Beta({alpha:g})",
            "fedmix-logits",
            {**LOGITS, "objective.alpha": alpha},
            *ALL,
        )
    ),
    *variants(
        "drawn-each",
        "NaiveMix, λ drawn for each sample",
        "naivemix",
        {**DRAWN, "objective.lam_per": "sample"},
        *ALL,
    ),
    *variants(
        "drawn-batch",
        "NaiveMix, λ drawn, a mean for each batch",
        "naivemix",
        {**DRAWN, "objective.per": "batch"},
        *ALL,
    ),
    *variants(
        "restricted",
        "NaiveMix, λ = 0.1, FedRS's rule",
        "restrictedmix",
        {"objective.lam": 0.1},
        *ALL,
        shown=("all", 5),
    ),
    *variants("restricted-drawn", "NaiveMix, λ drawn, FedRS's rule", "restrictedmix", DRAWN, *ALL),
    *variants("balance", "FedAvg, balance on means", "balance", {}, *ALL, shown=("all", 5)),
    *variants(
        "balance-naivemix",
        "NaiveMix, λ = 0.1, balance on means",
        "balance",
        {"objective.lam": 0.1},
        *ALL,
    ),
    *variants("balance-drawn", "NaiveMix, λ drawn, balance on means", "balance", DRAWN, *ALL),
    *variants(
        "drawn-avgm",
        "NaiveMix, λ drawn, FedAvgM",
        "naivemix",
        {**DRAWN, "server.name": "fedavgm"},
        *ALL,
    ),
    *variants(
        "drawn-normalised",
        "NaiveMix, λ drawn, features normalised",
        "naivemix",
        {**DRAWN, "model.normalise": True},
        *ALL,
    ),
)
WITH_HEAD = ("fedavg", "normalised", "naivemix-all", "drawn-5", "drawn-normalised-5")
ROWS = (*TRAINED, *(headed(row) for row in TRAINED if row.name in WITH_HEAD))

TABLE = PaperTable(
    name="beyond",
    title="Uses of exchanged means beyond the paper, and rivals that exchange none",
    source="",
    rows=ROWS,
    columns=(
        Part("classes", "CIFAR-10, 2 classes", "cifar10", settings=CIFAR),
        Part(
            "dirichlet",
            "CIFAR-10, Dirichlet 0.2",
            "cifar10",
            settings={**CIFAR, "data.partition": "dirichlet", "data.alpha": 0.2},
        ),
        Part("cifar100", "CIFAR-100, 20 classes", "cifar100", settings=CIFAR100),
        Part("femnist", "FEMNIST", "femnist"),
        Part(
            "femnist-long",
            "FEMNIST, 300 rounds",
            "femnist",
            settings={"rounds": 300},
        ),
        Part("digits", "digits, 2 classes", "digits", settings={"data.local_share": 0.3}),
    ),
    paper={},
    notes=(
        "λ drawn: uniformly from [0, 1] for each batch, with a mean for each sample, unless a row "
        "says otherwise.",
        "A client with fewer than M samples sends no mean.",
        "Head from statistics: each test is of the model whose last layer is set from what all "
        "clients would send then (LDA).",
    ),
    settings=SHORT,
    score="late",
    pairs=tuple(
        (row.name, other)
        for other in ("fedavg", "naivemix-all", "fedrs")
        for row in ROWS
        if row.name != other and not (row.name in ("fedavg", "naivemix-all") and other == "fedrs")
    ),
)
