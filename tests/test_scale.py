"""A hundred thousand clients: a round's cost does not grow with clients that take no part."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedmix import Exchange, Federation, FedMix, Training
from fedmix.core.rng import stream, streams
from fedmix.data import FederatedData, HeldOut, Ragged
from fedmix.exchange import all_clients, one_client, state
from fedmix.training.batches import Received

N, SAMPLES, D, C, K = 100_000, 10, 4, 3, 500


@pytest.fixture(scope="module")
def many() -> FederatedData:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((N * SAMPLES, D), dtype=np.float32), rng.integers(0, C, N * SAMPLES)
    return FederatedData(
        x,
        y,
        Ragged.cut(rng.permutation(N * SAMPLES), np.full(N, SAMPLES)),
        HeldOut(x[:50], y[:50]),
        C,
    )


def federation(data: FederatedData, **settings: Any) -> Federation:
    torch.manual_seed(0)
    return Federation(nn.Linear(D, C), data, FedMix(0.1), Training(K), seed=3, **settings)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the functions that work for single clients, or make streams, are called."""
    counted = Counter[str]()

    def count(module: Any, name: str) -> None:
        real: Callable[..., Any] = getattr(module, name)

        def counting(*args: Any, **kwargs: Any) -> Any:
            counted[name] += 1
            return real(*args, **kwargs)

        monkeypatch.setattr(module, name, counting)

    for module, name in (
        (one_client, "release"),
        (all_clients, "split"),
        (state, "stream"),
        (state, "build"),
    ):
        count(module, name)

    def drawn(generators: Iterator[np.random.Generator]) -> Iterator[np.random.Generator]:
        for generator in generators:
            counted["generators"] += 1
            yield generator

    monkeypatch.setattr(state, "streams", lambda *where: drawn(streams(*where)))
    return counted


def test_fedmix_with_a_hundred_thousand_clients(many: FederatedData, calls: Counter[str]) -> None:
    run = federation(many)
    assert run.exchange is not None
    going = run.run(3, evaluate_every=3)
    first = next(going)
    # One mean of everything for each client: nobody splits, nobody draws, and the pool is built and
    # shuffled once.
    assert calls == {"build": 1, "stream": 1}
    assert first.traffic.means_up == N * (D + C) * 4
    released, made, received = run.exchange.releases, run.exchange.pool, received_by(run)
    assert released is not None
    assert made is not None
    state = run.state()
    assert [r.round for r in going] == [2, 3]
    # Later rounds make nothing anew of what grows with the number of clients, and neither does a
    # checkpoint's state.
    assert calls == {"build": 1, "stream": 1}
    assert run.exchange.releases is released
    assert run.exchange.pool is made
    assert received_by(run) is received
    for name, part in (("exchange.x", released.x), ("exchange.y", released.y)):
        assert state[name].data_ptr() == run.state()[name].data_ptr() == part.data_ptr()
    assert made.entries_for(0) is made.entries_for(N - 1)
    # The state taken after the first round is still that of the first round.
    assert int(state["round"]) == 1
    assert int((state["exchange.holds"] == 1).sum()) == K
    expected = many.x[many.clients.flat].reshape(N, SAMPLES, D).astype(np.float64).mean(1)
    np.testing.assert_allclose(released.x.numpy(), expected, rtol=1e-6, atol=1e-7)


def received_by(run: Federation) -> Received:
    assert run._latest is not None
    return run._latest[1]


def test_it_goes_on_from_a_state(many: FederatedData) -> None:
    whole, first, second = (federation(many, exchange=Exchange(average=4)) for _ in range(3))
    done = list(whole.run(2))
    assert next(first.run(1)) == done[0]
    second.restore(first.state())
    assert next(second.run(2)) == done[1]
    assert all(torch.equal(p, second.params[n]) for n, p in whole.params.items())


@pytest.mark.parametrize(
    "how",
    [
        Exchange(),
        Exchange(m=3),
        Exchange(m=0.5, noise=0.2),
        Exchange(m=3, split="class"),
        Exchange(noise=0.2, cutoff=10),
    ],
    ids=str,
)
def test_any_client_released_what_it_would_by_itself(many: FederatedData, how: Exchange) -> None:
    """Every 50th client of 100,000 takes part, to keep the test short; ten are checked."""
    some = many.clients.take(np.arange(0, N, 50))
    data = FederatedData(many.x, many.y, some, many.test, C)
    exchange = state.MeanExchange(how, 3, len(some))
    exchange.refresh(data, data.units)
    assert exchange.releases is not None
    for k in np.random.default_rng(0).choice(len(some), 10, replace=False).tolist():
        y = data.targets(torch.from_numpy(data.y[some[k]]))
        own = stream(3, "split", k, 0), stream(3, "release-noise", k, 0)
        alone = one_client.release(k, data.x[some[k]], y, how, data.units, *own)
        assert alone is not None
        assert torch.equal(exchange.releases.of(k).x, alone.x)
        assert torch.equal(exchange.releases.of(k).y, alone.y)


def test_a_few_changed_clients(many: FederatedData, calls: Counter[str]) -> None:
    """Two clients change before the second round: they alone release again, and the rest of the
    data is as it was.
    """
    changes = {1: {7: [0, 1, 2], 70_000: [5]}}
    run = federation(many, changes=lambda r: changes.get(r, {}), exchange=Exchange(noise=0.1))
    done = list(run.run(2, evaluate_every=2))
    assert done[1].traffic.means_up == 2 * (D + C) * 4
    assert calls["generators"] == N + 2
    assert calls["build"] == 2
    assert run.data.x is many.x
    for k in (0, 6, 8, 69_999, 70_001, N - 1):
        np.testing.assert_array_equal(run.data.clients[k], many.clients[k])
    assert (run.data.clients[7].tolist(), run.data.clients[70_000].tolist()) == ([0, 1, 2], [5])
    assert many.clients.sizes[7] == SAMPLES
