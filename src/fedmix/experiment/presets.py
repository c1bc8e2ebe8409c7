"""Presets: experiments from a data set, with its model and settings, and an algorithm."""

from typing import Any

from fedmix.core.errors import BadInput
from fedmix.core.nearest import choice
from fedmix.core.registry import ALGORITHMS, DATA
from fedmix.data.preset import Preset
from fedmix.experiment.spec import Experiment

PRESETS: dict[str, Preset] = {
    name: preset for name in DATA if (preset := DATA.entry(name).facts.get("preset"))
}

RECOMMENDED = "fedmix-logits"  # it trains wherever it was run; the paper's form, fedmix, does not


def experiment(name: str, algorithm: str = RECOMMENDED, *, seed: int = 0) -> Experiment:
    """Return the experiment of a preset with an algorithm.

    Args:
        name: The name of a preset.
        algorithm: The name of an algorithm; by default the recommended one. The suffix "+prox"
            adds FedProx's term to any algorithm. The prefix "hidden-" makes one that
            uses means mix hidden states instead of inputs.
        seed: Partitions the data, initialises the model and drives all draws.

    Raises:
        BadInput: The preset or the algorithm is unknown, or has no hidden form.

    >>> run = experiment("digits", "naivemix+prox", seed=1)
    >>> run.objective.lam, run.objective.mu, run.training.momentum
    (0.1, 0.1, 0.9)
    """
    if name not in PRESETS:
        file = f", or give a file with [data] name = {name!r}" if name in DATA else ""
        raise BadInput(f"preset {name!r} is unknown; {choice(name, PRESETS)}{file}")
    preset = PRESETS[name]
    training = {
        "clients_per_round": preset.clients_per_round, "epochs": preset.epochs, "batch_size": 10,
        "lr": 0.01, "lr_decay": preset.lr_decay, "momentum": 0.9,
    }  # fmt: skip
    values: dict[str, Any] = {
        "data": {"name": name, **preset.data},
        "model": {"name": preset.model, "initialise": preset.initialise},
        "training": training,
        "rounds": preset.rounds,
        "evaluate_every": preset.evaluate_every,
        "target": preset.target,
        "seed": seed,
    }
    return Experiment.of(values | sections(algorithm, preset), f"preset {name}")


def sections(algorithm: str, preset: Preset) -> dict[str, Any]:
    """Return the [objective] and [exchange] of an algorithm, with the preset's λ and μ.

    Raises:
        BadInput: The algorithm is unknown, or has no hidden form.
    """
    base = algorithm.removesuffix("+prox").removeprefix("hidden-")
    if base not in ALGORITHMS:
        raise BadInput(
            f"algorithm {algorithm!r} is unknown; {choice(base, ALGORITHMS)}, with '+prox' or "
            "'hidden-' if wanted"
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
