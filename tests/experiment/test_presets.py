"""Every preset trains, on real data where it is embedded and on miniature files in the hub's layout
elsewhere.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from fedmix import BadInput, FedMix, Hidden, NaiveMix, Proximal
from fedmix.core.registry import ALGORITHMS
from fedmix.experiment.presets import PRESETS, experiment
from tests.miniature import write_mirror

NAMES = [
    *ALGORITHMS,
    "fedmix+prox",
    "localmix+prox",
    "hidden-fedmix",
    "hidden-naivemix+prox",
    "hidden-localmeans",
]
SENDS_MEANS = {
    "naivemix",
    "fedmix",
    "fedmix-logits",
    "fedmix+prox",
    "hidden-fedmix",
    "hidden-naivemix+prox",
    "restrictedmix",
    "balance",
    "meanmix",
}


@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_trains_digits(name: str) -> None:
    spec = experiment("digits", name, seed=2)
    assert spec.algorithm == name
    run = spec.federation()
    start = run.evaluate()["loss"]
    rounds = list(run.run(2))
    assert [r.round for r in rounds] == [1, 2]
    assert all(r.local_loss < start for r in rounds)
    assert (run.traffic.means_up > 0) == (name in SENDS_MEANS)


@pytest.mark.parametrize(
    ("name", "clients", "how"),
    [
        ("cifar10", 20, "fedavg"),
        ("cifar10", 20, "hidden-naivemix"),
        ("cifar100", 5, "fedmix"),  # the model of cifar10
        *(("femnist", 8, how) for how in ("fedavg", "fedmix", "hidden-naivemix")),
        *(("shakespeare", 4, how) for how in ("fedavg", "fedmix", "hidden-naivemix")),
    ],
)
def test_every_preset_trains_two_rounds(
    name: str, clients: int, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mirror(tmp_path / "hub", name)
    monkeypatch.setenv("FEDMIX_CACHE", str(tmp_path / "cache"))
    small: dict[str, Any] = {
        "data.clients": clients,
        "training.clients_per_round": 2,
        "training.epochs": 1,
        "engine.compile": False,
    }
    small["training.lr"] = 0.001  # few samples, far from the real ones
    if name == "cifar100":
        small["data.local_share"] = 0.2
    if name == "shakespeare":
        small |= {"data.cap": 100, "training.batch_size": 20}
    run = experiment(name, how, seed=1).with_settings(small).federation(tmp_path / "hub")
    before = {n: p.clone() for n, p in run.params.items()}
    rounds = list(run.run(2))
    assert all(r.metrics is not None and 0 <= r.metrics["accuracy"] <= 1 for r in rounds)
    assert all(not torch.equal(before[n], p) for n, p in run.params.items())


def test_the_papers_settings() -> None:
    """Appendix B: the table (E, K, λ of NaiveMix and FedMix, μ) and the text (N, learning rate,
    decay, batch size).
    """
    table = {
        "femnist": (10, 10, 100, 0.2, 0.2, 0.1),
        "cifar10": (2, 15, 60, 0.1, 0.05, 0.1),
        "cifar100": (10, 10, 100, 0.1, 0.1, 0.01),
        "shakespeare": (2, 60, 60, 0.1, 0.1, 0.001),
    }
    for name, (epochs, chosen, clients, naive, mix, mu) in table.items():
        values = experiment(name, "naivemix+prox").values()
        training = values["training"]
        assert (training["epochs"], training["clients_per_round"], values["data"]["clients"]) == (
            epochs,
            chosen,
            clients,
        )
        assert (training["lr"], training["lr_decay"], training["batch_size"]) == (0.01, 0.999, 10)
        assert (values["objective"]["lam"], values["objective"]["mu"]) == (naive, mu)
        assert experiment(name, "fedmix").values()["objective"]["lam"] == mix


def test_names_compose() -> None:
    spec = experiment("cifar10", "hidden-fedmix+prox")
    assert spec.build_objective() == Hidden(FedMix(0.05), 2) + Proximal(0.1)
    assert spec.values()["exchange"]["m"] == "all"
    assert experiment("femnist", "localmeans").build_objective() == NaiveMix(0.2)
    assert set(PRESETS) == {"digits", "cifar10", "cifar100", "femnist", "shakespeare"}


@pytest.mark.parametrize(
    ("name", "algorithm", "said"),
    [
        (
            "mnist",
            "fedmix",
            "preset 'mnist' is unknown; did you mean femnist\\? Known are cifar10, cifar100",
        ),
        (
            "digits",
            "fedsgd",
            "algorithm 'fedsgd' is unknown; did you mean fedrs\\? Known are balance, fedavg",
        ),
        ("digits", "hidden-fedavg", "only algorithms that use means have a hidden form"),
    ],
)
def test_unknown_names(name: str, algorithm: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        experiment(name, algorithm)
