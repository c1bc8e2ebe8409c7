"""The tables of FEMNIST."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from docs.generate.runs import BEST, LAST, LAST_TEN, TO_TARGET, Row
from docs.generate.tables import (
    CPU,
    GPU,
    TITLES,
    changed,
    differences,
    exact,
    grid,
    row,
    scores,
)

Settings = Mapping[str, Any]

HE: Settings = {"data.normalise": "standard", "model.initialise": "he"}  # what was tried first
NINE = (
    "globalmix", "naivemix", "fedmix-logits", "fedavg", "naivemix+prox", "fedprox", "localmix",
    "localmix+prox", "fedmix", "fedmix+prox",
)  # fmt: skip
MIXED = {
    "means of all clients (NaiveMix)": "naivemix",
    "random noise": "randommix",
    "a client's own means": "localmeans",
    "nothing (FedAvg)": "fedavg",
}
FORMS: Mapping[str, tuple[str, Settings]] = {
    "without ℓ3": ("fedmix", {"objective.third": 0.0}),
    "ℓ3 ten times too small": ("fedmix", {"objective.third": 0.1}),
    "ℓ3 at its right size": ("fedmix", {}),
    "logits": ("fedmix-logits", {"seeds": (0, 1, 2)}),
}
PRINTED: Mapping[str, tuple[str, Settings]] = {
    "ℓ3 with Algorithm 2's weight": ("fedmix", {"objective.scale": "algorithm"}),
    "momentum 0.5": ("fedmix", {"training.momentum": 0.5}),
    "no momentum": ("fedmix", {"training.momentum": 0.0}),
    "no momentum, rate 0.05": ("fedmix", {"training.momentum": 0.0, "training.lr": 0.05}),
    "weight decay 0.0005": ("fedmix", {"training.weight_decay": 0.0005}),
    "weight decay 0.005": ("fedmix", {"training.weight_decay": 0.005}),
}
OTHER_LAM: Mapping[str, tuple[str, Settings]] = {
    "λ = 0.1": ("fedmix", {"objective.lam": 0.1}),
    "λ = 0.05": ("fedmix", {"objective.lam": 0.05}),
    "logits, λ = 0.3": ("fedmix-logits", {"objective.lam": 0.3}),
    "logits, λ = 0.4": ("fedmix-logits", {"objective.lam": 0.4}),
}
FIRST: Settings = {"seeds": (0, 1, 2)}  # what most other settings were run with
SETTINGS: Mapping[str, Settings] = {
    "the preset: momentum 0.9, no weight decay": {},
    "the same, seeds 0 to 2": FIRST,
    "weight decay 0.0005": {"training.weight_decay": 0.0005},
    "momentum 0.5": {"training.momentum": 0.5},
    "no momentum": {"training.momentum": 0.0},
    "standardised": {**HE, **GPU},
    "standardised, on a CPU": {**HE, **CPU},
    "standardised, momentum 0.5": {**HE, **CPU, "training.momentum": 0.5},
    "standardised, no momentum": {**HE, **CPU, "training.momentum": 0.0},
    "standardised inputs, PyTorch's weights": {"data.normalise": "standard"},
    "inputs in [0, 1], He's weights": {"model.initialise": "he"},
    "the preset on a GPU": GPU,
    "means of others alone (`exchange.exclude_own=true`)": {"exchange.exclude_own": True},
    "a mean for each sample (`objective.per=sample`)": {"objective.per": "sample"},
}

of = partial(changed, "femnist")


def femnist() -> str:
    """The main setting."""
    fixed = [
        of(
            f"Global Mixup, λ = {lam} instead of drawn", "globalmix",
            {"objective.alpha": None, "objective.lam": lam},
        )
        for lam in (0.2, 0.5)
    ]  # fmt: skip
    first = [
        of(f"{TITLES[algorithm]}, seeds 0 to 2", algorithm, FIRST)
        for algorithm in ("naivemix", "fedmix-logits", "fedavg")
    ]
    return scores([*(row("femnist", algorithm) for algorithm in NINE), *first, *fixed])


def femnist_differences() -> str:
    """Differences at the end."""
    ours = {algorithm: row("femnist", algorithm) for algorithm in NINE}
    ours |= {
        algorithm: of(TITLES[algorithm], algorithm) for algorithm in ("randommix", "localmeans")
    }
    fixed = exact("Global Mixup, λ = 0.2", "femnist")
    without = of("FedMix without ℓ3", "fedmix", {"objective.third": 0.0})
    named = (
        ("naivemix", "fedavg"), ("fedmix-logits", "fedavg"), ("fedmix-logits", "naivemix"),
        ("globalmix", "naivemix"), ("fedprox", "fedavg"), ("localmix", "fedavg"),
        ("naivemix", "randommix"), ("naivemix", "localmeans"), ("randommix", "fedavg"),
    )  # fmt: skip
    early = of("NaiveMix, seeds 0 to 2", "naivemix", FIRST), of("FedAvg", "fedavg", FIRST)
    pairs = [(ours[a], ours[b]) for a, b in named] + [early]
    pairs += [(fixed, ours[b]) for b in ("naivemix", "fedmix-logits")]
    pairs += [(without, ours[b]) for b in ("naivemix", "fedmix-logits")]
    return differences(pairs, (LAST_TEN,))


def femnist_controls() -> str:
    """What is mixed with."""
    preset = [Row(t, "femnist", a, FIRST, ("controls", a, "femnist")) for t, a in MIXED.items()]
    other = [of(f"{t}, standardised", a, HE, CPU) for t, a in MIXED.items()]
    return scores([*preset, *other], (LAST_TEN, LAST, TO_TARGET))


def femnist_third() -> str:
    """The third term, and the logits form."""
    rows = [of(title, *said) for title, said in {**FORMS, **PRINTED}.items()]
    for title, (algorithm, settings) in {**FORMS, **OTHER_LAM}.items():
        rows.append(of(f"{title}, standardised", algorithm, HE, settings))
    return scores(rows, (LAST_TEN, BEST))


def femnist_settings() -> str:
    """Weight decay, momentum, inputs and weights."""
    return grid(SETTINGS, ("fedavg", "naivemix", "fedmix-logits"), "femnist", LAST_TEN)


def femnist_standard() -> str:
    """All rows with standardised inputs and He's weights."""
    return scores([of(TITLES[algorithm], algorithm, HE, GPU) for algorithm in NINE])


PARTS: Mapping[str, Callable[[], str]] = {
    "femnist": femnist,
    "femnist-differences": femnist_differences,
    "femnist-controls": femnist_controls,
    "femnist-third": femnist_third,
    "femnist-settings": femnist_settings,
    "femnist-standard": femnist_standard,
}
