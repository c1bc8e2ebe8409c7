"""The paper's settings for each data set (its appendix B), and its algorithms by name.

The paper gives K, E, B, λ, μ, the learning rate and its decay. It is silent about momentum; 0.9 is used here, since without it
none of the paper's accuracies is near at its rounds (docs/design.md).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from fedmix import data, models
from fedmix.data import FederatedData
from fedmix.errors import BadInput
from fedmix.exchange import Exchange
from fedmix.federation import Federation
from fedmix.models import initialised
from fedmix.objectives import FedMix, GlobalMix, Hidden, LocalMix, NaiveMix, Objective, Proximal, Supervised
from fedmix.training import Training


@dataclass(frozen=True)
class Preset:
    """A data set with its partition, its model, and the paper's settings for it.

    `rounds` and `target` are those of the paper's main table: how long to train, and the accuracy to count rounds to. `compile`
    is set where compiling the step pays on a CPU too: its ten seconds are won back in a few rounds.
    """

    name: str
    load: Callable[..., FederatedData]
    build: Callable[[], nn.Module]
    training: Training
    rounds: int
    target: float
    naivemix_lam: float
    fedmix_lam: float
    mu: float
    hidden_layer: int = 2
    compile: bool | None = None


def _training(clients_per_round: int, epochs: int, lr_decay: float = 0.999) -> Training:
    return Training(clients_per_round, epochs, batch_size=10, lr=0.01, lr_decay=lr_decay, momentum=0.9)


PRESETS = {
    preset.name: preset
    for preset in (
        Preset("digits", data.digits, models.digits_cnn, _training(5, 5, 1.0), 40, 0.9, 0.1, 0.05, 0.1),
        Preset("cifar10", data.cifar10, models.vgg, _training(15, 2), 500, 0.7, 0.1, 0.05, 0.1),
        Preset("cifar100", data.cifar100, lambda: models.vgg(100), _training(10, 10), 500, 0.4, 0.1, 0.1, 0.01),
        Preset("femnist", data.femnist, models.lenet, _training(10, 10), 200, 0.8, 0.2, 0.2, 0.1, compile=True),
        Preset("shakespeare", data.shakespeare, models.charlstm, _training(60, 2), 50, 0.5, 0.1, 0.1, 0.001, hidden_layer=1),
    )
}

ALGORITHMS = ("fedavg", "fedprox", "localmix", "globalmix", "naivemix", "fedmix", "fedmix-logits", "randommix", "localmeans")


def algorithm(name: str, preset: Preset) -> tuple[Objective, Exchange | None]:
    """The objective and exchange of an algorithm of the paper, with the preset's λ and μ.

    "+prox" adds FedProx's term to any of ALGORITHMS; "hidden-" mixes hidden states instead of inputs in those that use means.

    >>> algorithm("naivemix+prox", PRESETS["cifar10"])[0]
    Sum(first=NaiveMix(lam=0.1, per='batch'), second=Proximal(mu=0.1))
    """
    base = name.removesuffix("+prox").removeprefix("hidden-")
    naive = NaiveMix(preset.naivemix_lam)
    known: dict[str, tuple[Objective, Exchange | None]] = {
        "fedavg": (Supervised(), None),
        "fedprox": (Supervised() + Proximal(preset.mu), None),
        "localmix": (LocalMix(alpha=1.0), None),
        "globalmix": (GlobalMix(alpha=1.0), None),
        "naivemix": (naive, Exchange()),
        "fedmix": (FedMix(preset.fedmix_lam), Exchange()),
        "fedmix-logits": (FedMix(preset.fedmix_lam, expand="logits"), Exchange()),
        "randommix": (naive, Exchange(source="noise")),
        "localmeans": (naive, Exchange(source="own")),
    }
    if base not in known:
        raise BadInput(
            f"algorithm {name!r} is unknown; choose one of {', '.join(ALGORITHMS)}, with '+prox' or 'hidden-' if wanted"
        )
    objective, exchange = known[base]
    if "hidden-" in name:
        if exchange is None:
            raise BadInput(f"algorithm {name!r}: only algorithms that use means have a hidden form, such as hidden-fedmix")
        objective = Hidden(objective, preset.hidden_layer)
    if name.endswith("+prox"):
        objective = objective + Proximal(preset.mu)
    return objective, exchange


def preset(name: str) -> Preset:
    """A preset by name."""
    if name not in PRESETS:
        raise BadInput(f"preset {name!r} is unknown; choose one of {', '.join(PRESETS)}")
    return PRESETS[name]


def federation(name: str, how: str = "fedmix", *, seed: int = 0, **settings: Any) -> Federation:
    """The preset's federation with an algorithm: its data dealt out and its model initialised by `seed`.

    >>> run = federation("digits", "naivemix", seed=1)
    >>> len(run.data.clients), run.training.clients_per_round
    (20, 5)
    """
    chosen = preset(name)
    objective, exchange = algorithm(how, chosen)
    module = initialised(chosen.build, seed)
    settings = {"compile": chosen.compile} | settings
    return Federation(module, chosen.load(seed=seed), objective, chosen.training, exchange=exchange, seed=seed, **settings)
