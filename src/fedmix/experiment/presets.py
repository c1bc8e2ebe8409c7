"""The paper's settings for each data set (its appendix B), and its algorithms by name, as
experiments.

The paper gives N, K, E, B, λ, μ, the learning rate and its decay. It is silent about momentum; 0.9
is used here, since without it mixing costs accuracy and iid clients end below the paper's
(docs/reproduction.md). With it, the nine-layer VGG diverges in the first round from He's initial
weights in every layer, with FedAvg already; from those in convolutions alone ("he-conv") it trains.
LeNet-5 on FEMNIST comes nearest to the paper's row with ink in [0, 1] and PyTorch's initial weights
(docs/reproduction.md).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from fedmix.core.errors import BadInput
from fedmix.experiment.spec import DATA, Experiment


class Preset(NamedTuple):
    """A data set with its model and the paper's settings for it.

    `rounds` and `target` are those of the paper's main table: how long to train, and the accuracy
    to count rounds to. `compile` is set where compiling the step pays on a CPU too: its ten seconds
    are won back in a few rounds.
    """

    model: str
    clients_per_round: int
    epochs: int
    rounds: int
    target: float
    naivemix_lam: float
    fedmix_lam: float
    mu: float
    lr_decay: float = 0.999
    evaluate_every: int = 1
    hidden_layer: int = 2
    compile: bool | None = None
    initialise: str = "he"
    data: Mapping[str, Any] = {}


PRESETS = {
    "digits": Preset("digits_cnn", 5, 5, 40, 0.9, 0.1, 0.05, 0.1, lr_decay=1.0),
    "cifar10": Preset(
        "vgg", 15, 2, 500, 0.7, 0.1, 0.05, 0.1, evaluate_every=5, initialise="he-conv"
    ),
    "cifar100": Preset(
        "vgg", 10, 10, 500, 0.4, 0.1, 0.1, 0.01, evaluate_every=5, initialise="he-conv"
    ),
    "femnist": Preset(
        "lenet",
        10,
        10,
        200,
        0.8,
        0.2,
        0.2,
        0.1,
        compile=True,
        initialise="torch",
        data={"normalise": "unit"},
    ),
    "shakespeare": Preset("charlstm", 60, 2, 50, 0.5, 0.1, 0.1, 0.001, hidden_layer=1),
}

ALGORITHMS = (
    "fedavg",
    "fedprox",
    "localmix",
    "globalmix",
    "naivemix",
    "fedmix",
    "fedmix-logits",
    "randommix",
    "localmeans",
)


def experiment(name: str, algorithm: str = "fedmix", *, seed: int = 0) -> Experiment:
    """A preset with an algorithm, its data dealt out and its model initialised by `seed`.

    "+prox" adds FedProx's term to any of ALGORITHMS; "hidden-" mixes hidden states instead of
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
    naive = {"name": "naivemix", "lam": preset.naivemix_lam}
    mix = {"name": "fedmix", "lam": preset.fedmix_lam}
    known: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
        "fedavg": ({"name": "fedavg"}, None),
        "fedprox": ({"name": "fedavg", "mu": preset.mu}, None),
        "localmix": ({"name": "localmix", "alpha": 1.0}, None),
        "globalmix": ({"name": "globalmix", "alpha": 1.0}, None),
        "naivemix": (naive, {}),
        "fedmix": (mix, {}),
        "fedmix-logits": (mix | {"expand": "logits"}, {}),
        "randommix": (naive, {"source": "noise"}),
        "localmeans": (naive, {"source": "own"}),
    }
    if base not in known:
        choices = ", ".join(ALGORITHMS)
        raise BadInput(
            f"algorithm {algorithm!r} is unknown; choose one of {choices}, with '+prox' or "
            "'hidden-' if wanted"
        )
    objective, exchange = known[base]
    if algorithm.startswith("hidden-"):
        if exchange is None:
            raise BadInput(
                f"algorithm {algorithm!r}: only algorithms that use means have a hidden form, such "
                "as hidden-fedmix"
            )
        objective = objective | {"layer": preset.hidden_layer}
    if algorithm.endswith("+prox"):
        objective = objective | {"mu": preset.mu}
    return (
        {"objective": objective}
        if exchange is None
        else {"objective": objective, "exchange": exchange}
    )
