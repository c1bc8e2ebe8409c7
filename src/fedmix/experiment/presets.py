"""Presets: a data set with its model and settings, and an algorithm, as an experiment."""

from typing import Any

from fedmix.core.errors import BadInput
from fedmix.core.registry import ALGORITHMS, DATA
from fedmix.data.preset import Preset
from fedmix.experiment.spec import Experiment

PRESETS: dict[str, Preset] = {
    name: preset for name in DATA if (preset := DATA.entry(name).facts.get("preset"))
}


def experiment(name: str, algorithm: str = "fedmix", *, seed: int = 0) -> Experiment:
    """A preset with an algorithm, its data dealt out and its model initialised by `seed`.

    "+prox" adds FedProx's term to any algorithm; "hidden-" mixes hidden states instead of
    inputs in those that use means.

    >>> run = experiment("digits", "naivemix+prox", seed=1)
    >>> run.objective.lam, run.objective.mu, run.training.momentum
    (0.1, 0.1, 0.9)
    """
    if name not in PRESETS:
        file = f", or give a file with [data] name = {name!r}" if name in DATA else ""
        raise BadInput(f"preset {name!r} is unknown; choose one of {', '.join(PRESETS)}{file}")
    preset = PRESETS[name]
    training = {
        "clients_per_round": preset.clients_per_round, "epochs": preset.epochs, "batch_size": 10,
        "lr": 0.01, "lr_decay": preset.lr_decay, "momentum": 0.9,
    }  # fmt: skip
    values: dict[str, Any] = {
        "data": {"name": name, **preset.data},
        "model": {"name": preset.model, "initialise": preset.initialise},
        "training": training,
        "engine": {"compile": preset.compile},
        "rounds": preset.rounds,
        "evaluate_every": preset.evaluate_every,
        "target": preset.target,
        "seed": seed,
    }
    return Experiment.of(values | sections(algorithm, preset), f"preset {name}")


def sections(algorithm: str, preset: Preset) -> dict[str, Any]:
    """The [objective] and [exchange] of an algorithm, with the preset's λ and μ."""
    base = algorithm.removesuffix("+prox").removeprefix("hidden-")
    if base not in ALGORITHMS:
        raise BadInput(
            f"algorithm {algorithm!r} is unknown; choose one of {', '.join(ALGORITHMS)}, with "
            "'+prox' or 'hidden-' if wanted"
        )
    known = ALGORITHMS[base]()
    objective = {"name": known.objective, **preset.lam(known.objective), **known.settings}
    if algorithm.startswith("hidden-"):
        if known.exchange is None:
            raise BadInput(
                f"algorithm {algorithm!r}: only algorithms that use means have a hidden form, such "
                "as hidden-fedmix"
            )
        objective["layer"] = preset.hidden_layer
    if known.prox or algorithm.endswith("+prox"):
        objective["mu"] = preset.mu
    if known.exchange is None:
        return {"objective": objective}
    return {"objective": objective, "exchange": dict(known.exchange)}
