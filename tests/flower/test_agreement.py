"""A federation on Flower gives the weights and the bytes of the reference engine."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedmix import NaiveMix
from fedmix.data import FederatedData, alone
from fedmix.data.transforms import Images, Plain
from fedmix.exchange import Exchange, Traffic
from fedmix.flower import Task, client_app
from fedmix.flower.remote import Remote
from fedmix.flower.settings import Settings
from fedmix.models import initialised
from fedmix.privacy import guarantee_of
from fedmix.privacy.accounting import DELTA, guarantee, nonnegative
from tests.flower.nodes import Nodes
from tests.flower.tasks import SIZES, WIDTH, light, own, remote, simulated, task

FEDMIX = {"name": "fedmix", "lam": 0.1}


@dataclass(frozen=True)
class Shifted(Plain):
    """A normalisation that is not the same when it is done twice."""

    def normalise(self, x: Tensor) -> Tensor:
        return (x - 1) / 2


@pytest.mark.parametrize(
    ("objective", "exchange"),
    [
        (FEDMIX, {"m": 4}),
        (FEDMIX, {"m": 4, "split": "class", "exclude_own": True, "average": 2}),
        (FEDMIX | {"mu": 0.1}, {"m": 0.5, "cutoff": 10}),
        ({"name": "naivemix", "lam": 0.2, "per": "sample"}, {"m": "all"}),
        (FEDMIX, {"m": 4, "clip": 2.0}),
        (FEDMIX | {"layer": 1}, {"m": 4}),
        ({"name": "fedavg"}, None),
        ({"name": "localmix", "alpha": 1.0}, None),
    ],
)
def test_weights_and_bytes_are_those_of_the_sequential_engine(
    objective: dict[str, Any], exchange: dict[str, Any] | None
) -> None:
    experiment = light(objective, **({"exchange": exchange} if exchange else {}))
    real, reference = remote(experiment), simulated(experiment)
    for ours, theirs in zip(real.run(3), reference.run(3), strict=True):
        encoder = (
            4 * (WIDTH * 5 + 5) * 3 if objective.get("layer") else 0
        )  # sent to the chosen too, before the whole model
        assert ours.traffic == theirs.traffic + Traffic(models_down=encoder)
        assert ours.local_loss == pytest.approx(theirs.local_loss, rel=1e-6)
        assert ours.metrics == pytest.approx(theirs.metrics, rel=1e-5)
    for name, weight in reference.params.items():
        torch.testing.assert_close(real.params[name], weight, rtol=0, atol=1e-6)


@pytest.mark.parametrize("layer", [{}, {"layer": 1}])
def test_clients_normalise_the_means_that_they_get_once(layer: dict[str, Any]) -> None:
    """They travel as they are stored; means of hidden states are what they are."""
    experiment = light(FEDMIX | layer, exchange={"m": 4})
    agreed = task(experiment)
    agreed = replace(agreed, load=lambda *of: replace(own(*of), transform=Shifted()))
    real = Remote(Nodes(client_app(agreed), range(4)), agreed, Settings(clients=4), {})
    reference = simulated(experiment)
    reference.data = replace(reference.data, transform=Shifted())
    reference.resident = replace(reference.resident, data=reference.data)
    list(real.run(2))
    list(reference.run(2))
    for name, weight in reference.params.items():
        torch.testing.assert_close(real.params[name], weight, rtol=0, atol=1e-6)


def test_means_and_pool_travel_once() -> None:
    experiment = light(exchange={"m": 4}, training={"clients_per_round": 4, "batch_size": 5})
    nodes = Nodes(client_app(task(experiment)), range(4))
    real = remote(experiment, nodes)
    list(real.run(3))
    assert [len(nodes.of_kind("query.means", k)) for k in range(4)] == [1, 1, 1, 1]
    for k in range(4):
        assert len(nodes.of_kind("query.pool", k)) == 1
    # by hand: each client of n_k samples releases n_k // 4 means of WIDTH + 3 values, and everyone
    # gets all of them
    released = sum(n // 4 for n in SIZES) * (WIDTH + 3) * 4
    assert (real.traffic.means_up, real.traffic.means_down) == (released, 4 * released)


def test_counted_bytes_are_the_arithmetic_and_a_little_overhead() -> None:
    experiment = light(exchange={"m": 4})
    real = remote(experiment)
    *_, last = real.run(3)
    for sent, arithmetic in (
        (last.notes["sent_up"], real.traffic.up),
        (last.notes["sent_down"], real.traffic.down),
    ):
        messages = 4 + 4 + 4 + 3 * 3  # roll call, means, pool, three rounds of three
        assert (
            arithmetic < sent < arithmetic + messages * 6 * 200
        )  # at most six arrays and records, each with its header


def test_a_client_that_lost_the_pool_gets_it_again_in_the_same_round() -> None:
    experiment = light(exchange={"m": 4}, training={"clients_per_round": 4, "batch_size": 5})
    nodes = Nodes(client_app(task(experiment)), range(4))
    real, whole = remote(experiment, nodes), remote(experiment)
    next(real.run(1))
    nodes.contexts[nodes.node_of(2)].state.clear()  # as when an authenticated node was restarted
    second = next(real.run(2))
    list(whole.run(2))
    assert second.notes["replied"] == 4
    assert [len(nodes.of_kind("query.pool", k)) for k in range(4)] == [1, 1, 2, 1]
    assert torch.equal(real.params["1.weight"], whole.params["1.weight"])


def test_your_own_module_and_objective() -> None:
    def module(data: FederatedData) -> nn.Module:
        return initialised(
            lambda: nn.Sequential(nn.Linear(WIDTH, 4), nn.Dropout(0.2), nn.Linear(4, data.outputs)),
            3,
        )

    experiment = light({"name": "fedavg"})
    ours = replace(task(experiment), module=module, objective=NaiveMix(lam=0.3))
    nodes = Nodes(client_app(ours), range(4))
    real = Remote(nodes, ours, Settings(clients=4), {})
    reference = simulated(experiment, module=module, objective=ours.objective)
    list(real.run(2))
    list(reference.run(2))
    assert set(real.params) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    for name, weight in reference.params.items():
        torch.testing.assert_close(real.params[name], weight, rtol=0, atol=1e-6)


def test_releases_are_counted_for_the_guarantee_with_the_groups_that_clients_chose() -> None:
    experiment = light(exchange={"m": 4, "clip": 2.0, "noise": 1.0})
    real = remote(experiment)
    list(real.run(2))
    assert real.exchange is not None
    assert (real.exchange.sent.tolist(), real.exchange.smallest) == ([1, 1, 1, 1], 4)
    assert guarantee_of(real).epsilon == guarantee_of(simulated(experiment)).epsilon


def test_what_the_servers_samples_are_like_guarantees_nothing_of_the_clients() -> None:
    """Pixels are never negative and lie √2·clip apart; of other nodes' samples nobody knows, so
    that 2·clip counts.
    """
    how: dict[str, Any] = {"m": 4, "clip": 2.0, "noise": 1.0}
    pixels = np.zeros((4, 2, 2, 1), np.uint8), np.arange(4) % 3
    agreed = Task.of(
        light(exchange=how),
        lambda *_: alone(*pixels, classes=3, transform=Images((0.5,), (0.5,))),
        lambda _: alone(*pixels, classes=3, transform=Images((0.5,), (0.5,))),
        module=lambda _: nn.Sequential(nn.Flatten(), nn.Linear(4, 3)),
    )
    real = Remote(Nodes(client_app(agreed), range(4)), agreed, Settings(clients=4), {})
    assert nonnegative(real.data)
    assert guarantee_of(real).epsilon == guarantee(Exchange(**how), 4, DELTA).epsilon
