"""Every preset trains, on real data where it is embedded and on miniature files in the hub's layout elsewhere."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedmix import BadInput, Federation, FedMix, Hidden, NaiveMix, Proximal
from fedmix.models import initialised
from fedmix.presets import ALGORITHMS, PRESETS, algorithm, federation, preset
from tests.miniature import write_mirror

NAMES = [*ALGORITHMS, "fedmix+prox", "localmix+prox", "hidden-fedmix", "hidden-naivemix+prox", "hidden-localmeans"]


@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_trains_digits(name: str) -> None:
    run = federation("digits", name, seed=2)
    start = run.evaluate()["loss"]
    rounds = list(run.run(2))
    assert [r.round for r in rounds] == [1, 2]
    assert all(r.local_loss < start for r in rounds)
    assert (run.traffic.means_up > 0) == (
        name.removesuffix("+prox") in ("naivemix", "fedmix", "fedmix-logits", "hidden-fedmix", "hidden-naivemix")
    )


@pytest.mark.parametrize("how", ["fedavg", "fedmix", "hidden-naivemix"])
@pytest.mark.parametrize(("name", "clients"), [("cifar10", 20), ("cifar100", 5), ("femnist", 8), ("shakespeare", 4)])
def test_every_preset_trains_two_rounds(name: str, clients: int, how: str, tmp_path: Path) -> None:
    write_mirror(tmp_path / "hub", name)
    chosen = PRESETS[name]
    data = chosen.load(clients=clients, seed=1, root=tmp_path / "hub", cache=tmp_path / "cache")
    if name == "shakespeare":
        data = data.with_clients({k: data.clients[k][:30] for k in range(clients)})
    objective, exchange = algorithm(how, chosen)
    training = replace(chosen.training, clients_per_round=2, epochs=1, lr=0.001)  # few samples, far from the real ones
    run = Federation(initialised(chosen.build, 1), data, objective, training, exchange=exchange, seed=1)
    before = {n: p.clone() for n, p in run.params.items()}
    rounds = list(run.run(2))
    assert all(r.metrics is not None and 0 <= r.metrics["accuracy"] <= 1 for r in rounds)
    assert all(not torch.equal(before[n], p) for n, p in run.params.items())


def test_the_papers_settings() -> None:
    """Appendix B: the table (E, K, λ of NaiveMix and FedMix, μ) and the text (learning rate, decay, batch size)."""
    table = {
        "femnist": (10, 10, 0.2, 0.2, 0.1),
        "cifar10": (2, 15, 0.1, 0.05, 0.1),
        "cifar100": (10, 10, 0.1, 0.1, 0.01),
        "shakespeare": (2, 60, 0.1, 0.1, 0.001),
    }
    for name, (epochs, chosen, naive, mix, mu) in table.items():
        p = PRESETS[name]
        assert (p.training.epochs, p.training.clients_per_round, p.naivemix_lam, p.fedmix_lam, p.mu) == (
            epochs,
            chosen,
            naive,
            mix,
            mu,
        )
        assert (p.training.lr, p.training.lr_decay, p.training.batch_size) == (0.01, 0.999, 10)


def test_names_compose() -> None:
    objective, exchange = algorithm("hidden-fedmix+prox", PRESETS["cifar10"])
    assert objective == Hidden(FedMix(0.05), 2) + Proximal(0.1)
    assert exchange is not None
    assert algorithm("localmeans", PRESETS["femnist"])[0] == NaiveMix(0.2)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: preset("mnist"), "preset 'mnist' is unknown; choose one of digits, cifar10"),
        (lambda: algorithm("fedsgd", PRESETS["digits"]), "algorithm 'fedsgd' is unknown; choose one of fedavg"),
        (lambda: algorithm("hidden-fedavg", PRESETS["digits"]), "only algorithms that use means have a hidden form"),
    ],
)
def test_unknown_names(make: object, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        make()  # type: ignore[operator]
