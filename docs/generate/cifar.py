"""The tables of CIFAR-10 and CIFAR-100."""

from collections.abc import Callable, Mapping
from typing import Any

from docs.generate.runs import LAST, LAST_TEN, TO_TARGET, Row, between
from docs.generate.tables import (
    BF16,
    EARLY,
    FOUR,
    TITLES,
    changed,
    differences,
    exact,
    grid,
    row,
    scores,
    signed,
)


def cifar10() -> str:
    """The main setting."""
    return scores(_cifar10_rows())


def _cifar10_rows() -> list[Row]:
    ten = "cifar10"
    return [
        row(ten, "globalmix"),
        *(
            Row(
                f"Global Mixup, λ = {lam} instead of drawn", ten, "globalmix",
                {"objective.alpha": None, "objective.lam": lam}, ("lambda", "globalmix", f"{lam}"),
            )
            for lam in (0.05, 0.1)
        ),
        *(
            row(ten, algorithm)
            for algorithm in (
                "naivemix", "fedmix", "fedmix-logits", "fedavg", "fedprox", "localmix",
            )
        ),
        changed(ten, "FedMix, bf16", "fedmix", BF16),
        changed(ten, "FedMix, ℓ3 ten times smaller", "fedmix", {"objective.third": 0.1}),
        changed(ten, "FedMix without ℓ3, bf16", "fedmix", {"objective.third": 0.0}),
        changed(ten, "FedMix, logits, λ = 0.1", "fedmix-logits", {"objective.lam": 0.1}),
        changed(ten, "FedAvg, bf16", "fedavg", BF16),
    ]  # fmt: skip


def cifar10_differences() -> str:
    """Differences by rounds."""
    of = {a: row("cifar10", a) for a in (*FOUR, "fedprox")}
    fixed = exact("Global Mixup, λ = 0.05", "cifar10")
    pairs = [
        (of["naivemix"], of["fedavg"]), (of["fedmix"], of["fedavg"]),
        (of["fedmix-logits"], of["fedavg"]), (of["fedmix"], of["naivemix"]),
        (of["fedmix-logits"], of["naivemix"]), (of["fedmix-logits"], of["fedmix"]),
        (fixed, of["fedavg"]), (fixed, of["naivemix"]), (fixed, of["fedmix"]),
        (fixed, of["fedmix-logits"]), (of["fedprox"], changed("cifar10", "FedAvg", "fedavg", BF16)),
    ]  # fmt: skip
    return differences(pairs, (*EARLY, LAST_TEN))


SHORTER = {"rounds": 300}


def cifar10_settings() -> str:
    """Other settings, to round 300."""
    rows: dict[str, Mapping[str, Any]] = {
        "the preset": {},
        "two classes drawn by each client (`data.partition=random-classes`)": {
            "data.partition": "random-classes", **SHORTER,
        },
        "shards dealt out at random (`data.partition=shards`)": {"data.partition": "shards"},
        "shards, to round 300 only": {"data.partition": "shards", **SHORTER},
        "no augmentation (`data.augment=false`)": {"data.augment": False, **SHORTER},
        "no momentum (`training.momentum=0.0`)": {"training.momentum": 0.0},
        "no momentum, to round 300 only": {"training.momentum": 0.0, **SHORTER},
        "weight decay (`training.weight_decay=0.0005`)": {"training.weight_decay": 0.0005},
        "weight decay, to round 300 only": {"training.weight_decay": 0.0005, **SHORTER},
        "inputs in [0, 1], PyTorch's weights (`data.normalise=unit`, `model.initialise=torch`)": {
            "data.normalise": "unit", "model.initialise": "torch", **SHORTER,
        },
    }  # fmt: skip
    first = {title: {**settings, "seeds": (0,)} for title, settings in rows.items()}
    second: dict[str, dict[str, Any]] = {
        "the preset, seed 1": {"seeds": (1,)},
        "shards, to round 300 only, seed 1": {"data.partition": "shards", **SHORTER, "seeds": (1,)},
        "weight decay, seed 1": {"training.weight_decay": 0.0005, "seeds": (1,)},
    }
    return grid(first | second, FOUR, "cifar10", between(255, 300))


def cifar10_long() -> str:
    """Other settings, to round 500."""
    changes: dict[str, dict[str, Any]] = {
        "weight decay 0.0005": {"training.weight_decay": 0.0005},
        "no momentum": {"training.momentum": 0.0},
        "random shards": {"data.partition": "shards"},
    }
    rows = [
        changed("cifar10", f"{TITLES[algorithm]}, {title}", algorithm, settings)
        for title, settings in changes.items()
        for algorithm in FOUR
    ]
    iid = {"data.partition": "iid", "training.momentum": 0.0}
    return scores([*rows, changed("cifar10", "FedAvg, no momentum, iid data", "fedavg", iid)])


def cifar10_precision() -> str:
    """FedMix in bf16 and in tf32, seed 0."""
    seed = {"seeds": (0,)}
    rows = [
        changed("cifar10", "bf16", "fedmix", BF16, seed),
        changed("cifar10", "tf32", "fedmix", {"engine.precision": "tf32"}, seed),
    ]
    first, other = (one.runs[0].record for one in rows)
    assert first is not None
    assert other is not None
    apart = 100 * (first.metrics["accuracy"] - other.metrics["accuracy"])
    said = (
        f"Over all {len(apart)} tests bf16 is {signed(apart.mean())} points from tf32 in the mean, "
        f"and {abs(apart).max():.1f} at most."
    )
    return f"{scores(rows)}\n\n{said}"


CLASSES: Mapping[str, Mapping[str, Any]] = {
    "2": {**BF16, "seeds": (0,)},
    "3": {"data.classes_per_client": 3},
    "5": {"data.classes_per_client": 5},
    "10": {"data.partition": "iid"},
}


def cifar10_classes() -> str:
    """By classes per client."""
    rows = [
        Row(
            f"{TITLES[algorithm]}, {'iid' if count == '10' else f'{count} classes'}", "cifar10",
            algorithm, settings,
            None if algorithm == "fedmix-logits" else ("classes", algorithm, count),
        )
        for count, settings in CLASSES.items()
        for algorithm in ("fedavg", "fedmix", "fedmix-logits")
    ]  # fmt: skip
    return scores(rows, (LAST_TEN, LAST, between(55, 100), TO_TARGET))


def cifar100() -> str:
    """The main setting."""
    rows = [row("cifar100", a) for a in ("naivemix", "fedmix-logits", "fedmix", "fedavg")]
    third = changed("cifar100", "FedMix without ℓ3", "fedmix", {"objective.third": 0.0})
    return scores([*rows, third])


def cifar100_differences() -> str:
    """Differences by rounds."""
    of = {a: row("cifar100", a) for a in FOUR}
    third = changed("cifar100", "FedMix without ℓ3", "fedmix", {"objective.third": 0.0})
    pairs = [
        (of["naivemix"], of["fedavg"]), (of["fedmix-logits"], of["fedavg"]),
        (of["fedmix"], of["fedavg"]), (of["fedmix-logits"], of["naivemix"]),
        (of["fedmix"], of["naivemix"]), (third, of["naivemix"]), (third, of["fedmix"]),
        (of["fedmix-logits"], third),
    ]  # fmt: skip
    return differences(pairs, (*EARLY, LAST_TEN))


PARTS: Mapping[str, Callable[[], str]] = {
    "cifar10": cifar10,
    "cifar10-differences": cifar10_differences,
    "cifar10-settings": cifar10_settings,
    "cifar10-long": cifar10_long,
    "cifar10-classes": cifar10_classes,
    "cifar10-precision": cifar10_precision,
    "cifar100": cifar100,
    "cifar100-differences": cifar100_differences,
}
