"""The exchange over rounds: who resends when, what each client holds, and every byte counted by
hand.
"""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedmix import (
    BadInput,
    Exchange,
    Federation,
    FedMix,
    Hidden,
    NaiveMix,
    Supervised,
    Training,
    models,
)
from fedmix.data import FederatedData, from_arrays
from fedmix.exchange import MeanExchange, Releases, Traffic
from tests.synthetic import listen, one_after_another

Array = np.ndarray[Any, Any]
SIZES = (4, 2, 6, 3, 5)
N, D, C = len(SIZES), 3, 2
VALUE = 4  # bytes of a float32


def made(seed: int = 0, sizes: tuple[int, ...] = SIZES) -> FederatedData:
    """Clients of these sizes that hold one row after another, and ten spare rows for changes."""
    rng = np.random.default_rng(seed)
    total = sum(sizes)
    x, y = rng.standard_normal((total + 10, D)), rng.integers(0, C, total + 10)
    return from_arrays(x, y, one_after_another(sizes), (x[:4], y[:4]), classes=C)


def exchange(data: FederatedData, seed: int = 0, **how: Any) -> MeanExchange:
    started = MeanExchange(Exchange(**how), seed, len(data.clients))
    started.refresh(data, data.units)
    return started


def contents(mean: MeanExchange) -> list[tuple[float, ...]]:
    """The pool's entries (x, y), sorted."""
    assert mean.pool is not None
    return sorted(tuple(row) for row in torch.cat([mean.pool.x, mean.pool.y], 1).tolist())


def expected_means(data: FederatedData) -> list[tuple[float, ...]]:
    """One mean per client, by numpy."""
    rows = [data.clients[k] for k in range(len(data.clients))]
    together = [
        np.concatenate([data.x[r].astype(float).mean(0), np.eye(C)[data.y[r]].mean(0)])
        for r in rows
    ]
    return sorted(map(tuple, together))


def pool_x(mean: MeanExchange) -> torch.Tensor:
    assert mean.pool is not None
    return mean.pool.x


def released(mean: MeanExchange) -> Releases:
    assert mean.releases is not None
    return mean.releases


# What is sent when


def test_first_exchange() -> None:
    data = made()
    mean = MeanExchange(Exchange(), 0, N)
    assert mean.refresh(data, data.units) == Traffic(
        means_up=N * (D + C) * VALUE, pool=N * (D + C) * VALUE
    )
    assert mean.version == 1
    np.testing.assert_allclose(contents(mean), expected_means(data), rtol=1e-6)


def test_nothing_is_resent_while_nothing_changed() -> None:
    data = made()
    mean = exchange(data)
    before = mean.pool
    for _ in range(3):
        assert mean.refresh(data, data.units) == Traffic()
    assert mean.version == 1
    assert mean.pool is before


def test_only_changed_clients_resend() -> None:
    data = made()
    mean = exchange(data, m=2)
    old = released(mean)
    data = data.with_clients({2: [20, 21, 22, 23, 24], 4: [25, 26, 27, 28]})
    mean.changed([2, 4])
    # Clients 2 and 4 now hold 5 and 4 samples: two means each. The others' 4, 2 and 3 samples gave
    # 2 + 1 + 1.
    assert mean.refresh(data, data.units) == Traffic(
        means_up=4 * (D + C) * VALUE, pool=8 * (D + C) * VALUE
    )
    assert mean.version == 2
    for k in (0, 1, 3):
        assert torch.equal(released(mean).of(k).x, old.of(k).x)
    sums = [
        released(mean).of(2).x[0] * 2 + released(mean).of(2).x[1] * 3,
        released(mean).of(4).x.sum(0) * 2,
    ]
    np.testing.assert_allclose(sums[0].numpy(), data.x[20:25].sum(0), rtol=1e-5)
    np.testing.assert_allclose(sums[1].numpy(), data.x[25:29].sum(0), rtol=1e-5)
    assert mean.refresh(data, data.units) == Traffic()


def test_who_did_not_change_sends_nothing_again() -> None:
    """With noise, a second release would be another one."""
    data = made()
    mean = exchange(data, m=2, noise=0.5)
    before = released(mean)
    mean.changed([3])
    mean.refresh(data, data.units)
    for k in range(N):
        assert torch.equal(released(mean).of(k).x, before.of(k).x) == (k != 3)


def test_a_client_that_falls_below_the_cutoff_is_forgotten() -> None:
    data = made()
    mean = exchange(data, cutoff=3)  # client 1 has two samples
    assert np.unique(released(mean).owner).tolist() == [0, 2, 3, 4]
    data = data.with_clients({2: [20]})
    mean.changed([2])
    assert mean.refresh(data, data.units) == Traffic(means_up=0, pool=3 * (D + C) * VALUE)
    assert np.unique(released(mean).owner).tolist() == [0, 3, 4]


def test_releases_and_the_smallest_mean_are_counted() -> None:
    """Clients of 4, 2, 6, 3 and 5 samples, of which those with 3 or more send."""
    mean = exchange(made(), cutoff=3)
    assert (mean.sent.tolist(), mean.smallest) == ([1, 0, 1, 1, 1], 3)
    nobody = MeanExchange(Exchange(cutoff=9), 0, N)
    nobody.count(np.arange(0), nobody.how.smallest_group(np.array(SIZES)))
    assert (nobody.sent.tolist(), nobody.smallest) == ([0] * N, 0)


def test_a_cutoff_for_everybody_is_refused() -> None:
    data = made()
    with pytest.raises(
        BadInput,
        match=r"exchange.cutoff=7 leaves no client to send means: the largest has 6 samples; lower "
        r"it",
    ):
        exchange(data, cutoff=7)


@pytest.mark.parametrize(
    ("clients", "wait", "needed"),
    [(5, 0.0, 1), (5, 0.4, 2), (5, 0.5, 3), (5, 1.0, 5), (100, 0.07, 7), (100, 0.29, 29)],
)
def test_wait_holds_back_until_enough_changed(clients: int, wait: float, needed: int) -> None:
    data = made(sizes=(1,) * clients)
    mean = exchange(data, wait=wait)
    for count in range(1, needed + 1):
        assert mean.version == 1
        data = data.with_clients({count - 1: [clients + count % 10]})
        mean.changed([count - 1])
        traffic = mean.refresh(data, data.units)
        assert traffic.means_up == (needed * (D + C) * VALUE if count == needed else 0)
    assert mean.version == 2
    assert not mean.pending
    np.testing.assert_allclose(contents(mean), expected_means(data), rtol=1e-6)


def test_a_client_that_changes_twice_counts_once() -> None:
    data = made()
    mean = exchange(data, wait=0.4)
    for rows in ([20, 21], [22, 23]):
        data = data.with_clients({0: rows})
        mean.changed([0])
        assert mean.refresh(data, data.units) == Traffic()
    data = data.with_clients({1: [24]})
    mean.changed([1])
    assert mean.refresh(data, data.units).means_up == 2 * (D + C) * VALUE
    np.testing.assert_allclose(contents(mean), expected_means(data), rtol=1e-6)


def test_changed_data_is_grouped_anew() -> None:
    """The rows are the same, but said to have changed: twelve are split into sixes again, with the
    same sum in all.
    """
    data = made(sizes=(12, 12))
    mean = exchange(data, m=6)
    for _ in range(2):
        old = released(mean).of(0).x
        mean.changed([0])
        mean.refresh(data, data.units)
        new = released(mean).of(0).x
        assert not torch.allclose(new, old)
        np.testing.assert_allclose(new.sum(0).numpy(), old.sum(0).numpy(), rtol=1e-4, atol=1e-6)


def test_every_round() -> None:
    data = made()
    mean = MeanExchange(Exchange(), 0, N)
    everything = Traffic(means_up=N * (D + C) * VALUE, pool=N * (D + C) * VALUE)
    for version in (1, 2, 3):
        assert mean.refresh(data, data.units, every_round=True) == everything
        assert mean.version == version


# Who gets it


def test_pool_is_delivered_once_per_client_and_version() -> None:
    data = made()
    mean = exchange(data)
    size = N * (D + C) * VALUE
    assert mean.deliver([0, 2]) == Traffic(means_down=2 * size)
    assert mean.deliver([0, 2]) == Traffic()
    assert mean.deliver([2, 3]) == Traffic(means_down=size)
    mean.changed([4])
    mean.refresh(data.with_clients({4: [20]}), data.units)
    assert mean.deliver([2, 1]) == Traffic(means_down=2 * size)
    assert mean.deliver([0, 1, 2, 3, 4]) == Traffic(means_down=3 * size)


def test_who_lost_the_pool_gets_it_again() -> None:
    mean = exchange(made())
    mean.deliver([0, 1, 2])
    before = mean.holds
    mean.lost([0, 2])
    assert (before.tolist(), mean.holds.tolist()) == ([1, 1, 1, 0, 0], [0, 1, 0, 0, 0])
    assert mean.deliver([0, 1, 2]) == Traffic(means_down=2 * N * (D + C) * VALUE)


def test_exclude_own() -> None:
    data = made()
    mean = exchange(data, m=1, exclude_own=True)
    for k in range(N):
        others = np.delete(data.x[: sum(SIZES)], data.clients[k], axis=0)
        got = pool_x(mean)[mean.entries_for(k)].numpy()
        assert sorted(map(tuple, got)) == sorted(map(tuple, others))


def test_the_order_of_the_pool_is_the_seeds() -> None:
    data = made(sizes=(1,) * 12)
    one, same, other = (pool_x(exchange(data, seed)).tolist() for seed in (0, 0, 1))
    owners_in_order = data.x[:12].tolist()
    assert one == same
    assert one != other
    assert one != owners_in_order
    assert sorted(one) == sorted(other) == sorted(owners_in_order)


def test_a_new_version_is_shuffled_anew() -> None:
    data = made(sizes=(1,) * 12)
    mean = exchange(data)
    first = pool_x(mean).tolist()
    mean.changed([3])
    mean.refresh(data, data.units)
    assert pool_x(mean).tolist() != first
    assert sorted(pool_x(mean).tolist()) == sorted(first)


# Noise on releases


def test_noise_differs_between_clients_and_seeds_and_not_between_runs() -> None:
    data = made()
    clean = exchange(data)
    noisy, again, other = (exchange(data, seed, noise=0.5) for seed in (0, 0, 1))
    drawn = {k: (released(noisy).of(k).x - released(clean).of(k).x).numpy() for k in range(N)}
    assert len({tuple(np.round(d[0], 4)) for d in drawn.values()}) == N
    for k in range(N):
        assert torch.equal(released(noisy).of(k).x, released(again).of(k).x)
        assert torch.equal(released(noisy).of(k).y, released(clean).of(k).y)
        assert not torch.allclose(released(noisy).of(k).x, released(other).of(k).x)


def test_noise_is_drawn_anew_when_a_client_sends_again() -> None:
    data = made()
    mean = exchange(data, noise=0.5)
    first = released(mean).of(0).x
    mean.changed([0])
    mean.refresh(data, data.units)
    assert not torch.allclose(released(mean).of(0).x, first)


# The paper's controls


def test_own_means() -> None:
    data = made()
    mean = MeanExchange(Exchange(m=2, source="own"), 0, N)
    assert mean.refresh(data, data.units) == Traffic()
    assert mean.deliver(range(N)) == Traffic()
    for k, means in enumerate([2, 1, 3, 1, 2]):
        entries = mean.entries_for(k)
        assert len(entries) == means
        sizes = [2] * (means - 1) + [2 + SIZES[k] % 2]
        got = pool_x(mean)[entries].double().numpy()
        # The entries' order is shuffled: some order of the sizes gives the client's sum.
        totals = [np.roll(sizes, shift) @ got for shift in range(means)]
        assert (
            min(np.abs(t - data.x[data.clients[k]].astype(float).sum(0)).max() for t in totals)
            < 1e-5
        )


def test_own_means_by_class() -> None:
    data = made(sizes=(12, 12))
    counts = [np.bincount(data.y[data.clients[k]], minlength=C) for k in range(2)]
    mean = exchange(data, source="own", m=2, split="class")
    assert mean.pool is not None
    assert min(map(min, counts)) > 1
    assert len(mean.pool) == sum(n // 2 for each in counts for n in each)
    assert set(mean.pool.y.flatten().tolist()) == {0.0, 1.0}


def test_own_means_are_neither_cut_off_nor_noised() -> None:
    data = made()
    mean = exchange(data, source="own", cutoff=3, noise=5.0)
    np.testing.assert_allclose(contents(mean), expected_means(data), rtol=1e-6)


def test_noise_says_nothing_about_the_data() -> None:
    data, other = made(0), made(1)
    assert not np.allclose(data.x, other.x)
    one, two = (MeanExchange(Exchange(m=2, source="noise"), 0, N) for _ in range(2))
    assert one.refresh(data, data.units) == Traffic()
    two.refresh(other, other.units)
    assert one.deliver(range(N)) == Traffic()
    assert contents(one) == contents(two)
    assert one.pool is not None
    assert len(one.pool) == 2 + 1 + 3 + 1 + 2
    assert one.pool.y.tolist() == [[0.5, 0.5]] * 9
    wide = exchange(made(sizes=(500,) * 4), m=1, source="noise")
    values = pool_x(
        wide
    ).double()  # 6,000 standard normals: s² deviates from 1 by sqrt(2/6000) = 0.018
    assert abs(float(values.var()) - 1) < 5 * 0.018
    assert abs(float(values.mean())) < 5 / 6000**0.5


def regression() -> FederatedData:
    """Two clients with targets (3, −2), (5, −4) and (0, 1)."""
    x, y = np.ones((3, D)), np.array([[3.0, -2.0], [5.0, -4.0], [0.0, 1.0]])
    return from_arrays(x, y, [[0, 1], [2]], (x, y))


def test_targets_of_a_regression_are_no_shares() -> None:
    clipped, noise = exchange(regression(), clip=99.0), exchange(regression(), source="noise")
    assert clipped.pool is not None
    assert noise.pool is not None
    assert sorted(clipped.pool.y.tolist()) == [[0.0, 1.0], [4.0, -3.0]]
    assert noise.pool.y.tolist() == [[0.0, 0.0]] * 2


def test_sums_of_several_clients_come_averaged() -> None:
    data, mean = made(), MeanExchange(Exchange(secure="secagg+", average=2, clip=9.0), 0, N)
    sums = Releases(np.array([0, 2]), torch.eye(2, D), torch.eye(2, C))
    mean.take(np.arange(N), [sums], data)
    assert sorted(pool_x(mean).tolist()) == [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]


# Saved and put back


def test_state_before_the_first_exchange() -> None:
    data = made()
    mean = MeanExchange(Exchange(), 0, N)
    back = MeanExchange(Exchange(), 0, N)
    back.restore(mean.state(), data)
    assert (back.version, back.pool) == (0, None)
    assert back.refresh(data, data.units).means_up == N * (D + C) * VALUE


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"m": 1},
        {"m": 2, "average": 3},
        {"noise": 0.5},
        {"source": "own", "m": 1},
        {"source": "noise"},
        {"cutoff": 3},
    ],
)
def test_state_and_restore(how: dict[str, Any]) -> None:
    data = made()
    mean = exchange(data, 3, wait=0.4, **how)
    mean.deliver([1, 3])
    data = data.with_clients({0: [20, 21, 22]})
    mean.changed([0])
    mean.refresh(data, data.units)  # held back
    saved = {name: t.clone() for name, t in mean.state().items()}

    back = MeanExchange(Exchange(wait=0.4, **how), 3, N)
    back.restore(saved, data)
    for _ in range(2):
        assert mean.pool is not None
        assert back.pool is not None
        assert torch.equal(back.pool.x, mean.pool.x)
        assert torch.equal(back.pool.y, mean.pool.y)
        assert back.pool.owners.flat.tolist() == mean.pool.owners.flat.tolist()
        assert back.pool.owners.offsets.tolist() == mean.pool.owners.offsets.tolist()
        assert (back.version, back.pending) == (mean.version, mean.pending)
        assert back.holds.tolist() == mean.holds.tolist()
        assert back.epoch.tolist() == mean.epoch.tolist()
        data = data.with_clients({3: [23, 24, 25]})
        for each in (mean, back):
            each.changed([3])
        assert mean.refresh(data, data.units) == back.refresh(data, data.units)
        assert mean.deliver([1, 2]) == back.deliver([1, 2])
    assert mean.version == 2
    mean.changed([1])  # what was saved does not follow
    assert saved["epoch"].tolist() == [1, 0, 0, 0, 0]


DAMAGE: list[tuple[str, torch.Tensor | None, str]] = [
    ("holds", None, "holds"),
    ("holds", torch.zeros(N - 1, dtype=torch.int64), "holds"),
    ("epoch", torch.zeros(N), "epoch"),
    ("sent", -torch.ones(N, dtype=torch.int64), "sent"),
    ("version", torch.zeros(1, dtype=torch.int64), "version"),
    ("smallest", torch.tensor(1.0), "smallest"),
    ("pending", torch.tensor([-1]), "pending"),
    ("pending", torch.tensor(1), "owners"),
    ("pending", torch.tensor([N]), "owners"),
    ("owner", None, "releases"),
    ("x", None, "releases"),
    ("y", None, "releases"),
    ("owner", torch.zeros(N), "owners"),
    ("owner", torch.zeros(N, 1, dtype=torch.int64), "owners"),
    ("owner", torch.zeros(0, dtype=torch.int64), "owners"),
    ("owner", torch.arange(N) - 1, "owners"),
    ("owner", torch.arange(N) + 1, "owners"),
    ("owner", torch.arange(N).flip(0), "releases"),
    ("x", torch.zeros(N - 1, D), "releases"),
    ("x", torch.zeros(N, D, dtype=torch.float64), "releases"),
    ("y", torch.zeros(N, C, dtype=torch.float64), "releases"),
    ("y", torch.zeros(N, C + 1), "releases"),
    ("y", torch.full((N, C), float("nan")), "releases"),
]


@pytest.mark.parametrize(("name", "value", "said"), DAMAGE)
def test_a_damaged_state_is_refused(name: str, value: torch.Tensor | None, said: str) -> None:
    data = made()
    saved = exchange(data).state()
    damaged = {n: t for n, t in (saved | {name: value}).items() if t is not None}
    with pytest.raises(BadInput, match=f"its exchange has no fitting {said}; start anew"):
        MeanExchange(Exchange(), 0, N).restore(damaged, data)
    MeanExchange(Exchange(), 0, N).restore(saved, data)


def test_a_state_that_lost_all_its_releases_is_refused() -> None:
    data = made()
    saved = exchange(data).state()
    for name in ("owner", "x", "y"):
        del saved[name]
    with pytest.raises(BadInput, match="no fitting releases"):
        MeanExchange(Exchange(), 0, N).restore(saved, data)


# Every byte of a run


def test_traffic_of_a_run() -> None:
    """2·N·(d_i + C) values for the exchange (the paper's 2·N·d_i, with labels), 2·K·p_m for the
    models of a round.
    """
    K, parameters = 2, D * C + C
    federation = Federation(nn.Linear(D, C), made(), FedMix(0.1), Training(K, batch_size=4), seed=1)
    work = listen(federation)
    size = N * (D + C) * VALUE
    had: set[int] = set()
    total = Traffic()
    for finished in federation.run(6):
        t = finished.traffic
        assert t.models_up + t.models_down == 2 * K * parameters * VALUE
        assert t.models_up == t.models_down
        assert t.means_up + t.pool == (2 * N * (D + C) * VALUE if finished.round == 1 else 0)
        new = set(work[-1].clients.tolist()) - had
        had |= new
        assert t.means_down == size * len(new)
        assert (t.up, t.down) == (t.models_up + t.means_up, t.models_down + t.means_down)
        total = total + t
    assert 2 < len(had) <= N
    assert federation.traffic == total
    assert total.means_down == size * len({k for round_ in work for k in round_.clients.tolist()})


def test_traffic_after_a_change() -> None:
    K = N
    changes = {2: {1: [20, 21], 3: [22]}}
    federation = Federation(
        nn.Linear(D, C),
        made(),
        NaiveMix(0.1),
        Training(K, batch_size=4),
        changes=lambda r: changes.get(r, {}),
    )
    per_round = [r.traffic for r in federation.run(4)]
    mean = (D + C) * VALUE
    assert [t.means_up for t in per_round] == [N * mean, 0, 2 * mean, 0]
    assert [t.pool for t in per_round] == [N * mean, 0, N * mean, 0]
    assert [t.means_down for t in per_round] == [K * N * mean, 0, K * N * mean, 0]


def test_no_means_no_bytes() -> None:
    federation = Federation(nn.Linear(D, C), made(), Supervised(), Training(2))
    assert {
        (r.traffic.means_up, r.traffic.means_down, r.traffic.pool) for r in federation.run(2)
    } == {(0, 0, 0)}
    control = Federation(
        nn.Linear(D, C), made(), FedMix(0.1), Training(2), exchange=Exchange(source="own")
    )
    assert {(r.traffic.means_up, r.traffic.means_down, r.traffic.pool) for r in control.run(2)} == {
        (0, 0, 0)
    }


def test_traffic_of_hidden_states() -> None:
    """Means of 4 hidden values every round; N−K clients get the encoder, 3·4 + 4 values of 26, only
    to make them.
    """
    K, hidden, encoder, parameters = 2, 4, D * 4 + 4, (D * 4 + 4) + (4 * C + C)
    federation = Federation(
        models.mlp(D, C, hidden), made(), Hidden(FedMix(0.1), 1), Training(K, batch_size=4)
    )
    for finished in federation.run(3):
        pool = N * (hidden + C) * VALUE
        assert finished.traffic == Traffic(
            models_up=K * parameters * VALUE,
            models_down=(K * parameters + (N - K) * encoder) * VALUE,
            means_up=pool,
            means_down=K * pool,
            pool=pool,
        )


def test_hidden_means_are_those_of_the_rounds_weights() -> None:
    data = made()
    federation = Federation(
        models.mlp(D, C, 4), data, Hidden(NaiveMix(0.1), 1), Training(2, batch_size=4, lr=0.5)
    )
    for _ in range(2):
        weight, bias = (federation.params[f"0.0.{n}"].double().numpy() for n in ("weight", "bias"))
        next(federation.run(federation.round + 1))
        states = np.tanh(data.x.astype(float) @ weight.T + bias)
        expected = [states[data.clients[k]].mean(0) for k in range(N)]
        assert federation.exchange is not None
        got = sorted(map(tuple, pool_x(federation.exchange).tolist()))
        np.testing.assert_allclose(got, sorted(map(tuple, expected)), rtol=1e-4, atol=1e-6)
