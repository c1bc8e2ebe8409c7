"""One (ε, δ) for all that leaves clients: against closed forms, by hand, and on real runs."""

import math
from dataclasses import replace
from typing import Any

import dp_accounting as dp
import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import nn

from fedmix import (
    BadInput,
    DPFedAvg,
    Exchange,
    Federation,
    FedMix,
    Head,
    Hidden,
    NaiveMix,
    Objective,
    Scaffold,
    Supervised,
    Training,
)
from fedmix.data import FederatedData, from_arrays
from fedmix.models import initialised
from fedmix.objectives import GlobalMix
from fedmix.privacy import NoisySums, Whole, guarantee_of, least_multiplier, whole_of
from fedmix.runs.summary import privacy
from tests.synthetic import arrays

NOISED = DPFedAvg(0.5, 8.0)
OTHERWISE = "the run goes on from a state that was made with other settings"


def delta_of(mu: float, epsilon: float) -> float:
    """Two unit normals μ apart: Balle & Wang (2018), Theorem 8."""
    return float(
        norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    )


# The accounting


@pytest.mark.parametrize(("rounds", "z"), [(1, 4.0), (9, 4.0), (100, 30.0)])
def test_where_all_take_part_it_is_the_gaussian_mechanism(rounds: int, z: float) -> None:
    """One replaced client moves a sum by 2C and its noise is z·C; k rounds are one with σ/√k."""
    epsilon = NoisySums(rounds, z, 7, 7).epsilon(1e-5)
    assert delta_of(2 * math.sqrt(rounds) / z, epsilon) == pytest.approx(1e-5, rel=1e-6)
    assert epsilon == pytest.approx(NoisySums(1, z / math.sqrt(rounds)).epsilon(1e-5))


def test_other_noise_adds_up_in_squares() -> None:
    """μ² of 4 rounds with z = 10 is 4·(2/10)² = 0.16; with 0.3² more it is 0.5²."""
    assert delta_of(0.5, NoisySums(4, 10.0).epsilon(1e-6, mu=0.3)) == pytest.approx(1e-6, rel=1e-6)


@pytest.mark.parametrize("order", [2, 5, 17])
def test_sampling_without_replacement_is_theorem_9(order: int) -> None:
    """Wang, Balle, Kasiviswanathan (2019), with the second form of each minimum, which is never
    below the first: what dp-accounting says of a round is no larger, and no less than q = 0 has.
    """
    q, sigma = 0.1, 3.0

    def moment(j: int) -> float:
        return j * (j - 1) / (2 * sigma**2)  # (j - 1)·ε(j) of normal noise

    theirs = 1 + q**2 * math.comb(order, 2) * 2 * math.exp(moment(2))
    theirs += sum(q**j * math.comb(order, j) * 2 * math.exp(moment(j)) for j in range(3, order + 1))
    accountant = dp.rdp.RdpAccountant([order], dp.NeighboringRelation.REPLACE_ONE)
    accountant.compose(dp.SampledWithoutReplacementDpEvent(100, 10, dp.GaussianDpEvent(sigma)))
    assert 0 < accountant._rdp[0] <= math.log(theirs) / (order - 1)


def test_a_secret_choice_helps_the_more_the_fewer_are_chosen() -> None:
    """With K of N it is below all taking part, and grows with K."""
    known = NoisySums(20, 5.0, 10, 10).epsilon(1e-5)
    found = [NoisySums(20, 5.0, k, 100).epsilon(1e-5) for k in (5, 20, 80)]
    assert found == sorted(found)
    assert all(0 < e <= known for e in found)
    assert found[0] < known / 4


def test_one_round_of_a_secret_choice_against_the_exact_curve() -> None:
    """One round, zeros beside the client that is replaced, C by −C: the outputs are mixtures of two
    normals with N(0, σ²), whose δ at an ε is an integral. The promised ε may be no smaller.
    """
    q, z, delta = 0.25, 2.0, 1e-5
    x = np.linspace(-25, 25, 400_001)
    p, other = ((1 - q) * norm.pdf(x, 0, z) + q * norm.pdf(x, mean, z) for mean in (1.0, -1.0))
    promised = NoisySums(1, z, 25, 100).epsilon(delta)
    exact = np.maximum(p - math.exp(promised) * other, 0).sum() * (x[1] - x[0])
    less = np.maximum(p - math.exp(promised / 4) * other, 0).sum() * (x[1] - x[0])
    assert exact <= delta < less  # it holds, and a quarter of it would not


def test_the_least_multiplier_gives_its_epsilon() -> None:
    for chosen, clients, mu in ((10, 10, 0.0), (10, 100, 0.0), (10, 100, 0.3)):
        z = least_multiplier(2.0, 30, chosen, clients, mu=mu)
        assert NoisySums(30, z, chosen, clients).epsilon(mu=mu) <= 2.0
        assert NoisySums(30, z / 1.002, chosen, clients).epsilon(mu=mu) > 2.0
    with pytest.raises(BadInput, match=r"epsilon=1 cannot be reached: .* has ε = .* alone"):
        least_multiplier(1.0, 30, 10, 100, mu=5.0)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rounds": 0}, "rounds=0 must be at least 1"),
        ({"noise_multiplier": 0.0}, r"noise_multiplier=0.0 must be positive"),
        ({"chosen": 5, "clients": 4}, "chosen=5 is more than clients=4"),
    ],
)
def test_wrong_sums_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        NoisySums(**{"rounds": 1, "noise_multiplier": 1.0, **wrong})


# Real runs


def federation(
    objective: Objective | None = None,
    exchange: Exchange | None = None,
    data: FederatedData | None = None,
    **more: Any,
) -> Federation:
    return Federation(
        initialised(lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), 0),
        data or arrays(30, clients=4), objective or Supervised(),
        Training(more.pop("chosen", 2), batch_size=8, lr=0.05),
        exchange=exchange, **{"updates": NOISED, **more},
    )  # fmt: skip


MEANS = Exchange(clip=2.0, noise=20.0)


def test_everything_is_counted() -> None:
    """Updates of 3 rounds, means once and a head once. Means: 2·2/20; the head: 2·√3/9."""
    run = federation(NaiveMix(0.1), MEANS, head=Head(clip=1.0, noise=9.0), chosen=4)
    list(run.run(3))
    found = whole_of(run)
    mu = math.sqrt(3 * (2 / 8) ** 2 + (4 / 20) ** 2 + (2 * math.sqrt(3) / 9) ** 2)
    assert delta_of(mu, found.epsilon) == pytest.approx(1e-5, rel=1e-6)
    assert list(found.parts) == [
        "updates of 3 rounds, 4 of 4 clients in each", "means of one release", "a head's statistics"
    ]  # fmt: skip
    assert delta_of(0.2, found.parts["means of one release"]) == pytest.approx(1e-5, rel=1e-6)


def test_hidden_states_count_once_a_round() -> None:
    """They are made by weights that carry noise: T releases of deviation 20 move by 2·2 each."""
    run = federation(Hidden(FedMix(0.1), 1), MEANS, chosen=4)
    list(run.run(3))
    mu = math.sqrt(3 * ((2 / 8) ** 2 + (4 / 20) ** 2))
    assert delta_of(mu, whole_of(run).epsilon) == pytest.approx(1e-5, rel=1e-6)


def test_a_run_that_goes_on_counts_all_its_rounds() -> None:
    first, second = federation(), federation()
    list(first.run(2))
    second.restore(first.state())
    list(second.run(5))
    assert whole_of(second).epsilon == NoisySums(5, 8.0, 2, 4).epsilon()
    assert whole_of(federation()).epsilon == NoisySums(1, 8.0, 2, 4).epsilon()


def twice() -> FederatedData:
    x, y = np.random.default_rng(0).standard_normal((8, 4)), np.arange(8) % 3
    return from_arrays(x, y, [[0, 1, 2], [2, 3], [4, 5], [6, 7]], (x, y), classes=3)


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (lambda: federation(updates=None), "the updates: they carry no noise"),
        (lambda: federation(updates=DPFedAvg(1.0)), "the updates: they carry no noise"),
        (lambda: federation(GlobalMix(lam=0.5)), "the samples: raw samples of all clients"),
        (lambda: federation(Supervised() + Scaffold()), "what clients keep: they send changes"),
        (lambda: federation(NaiveMix(0.1)), "the means: the means carry no noise"),
        (
            lambda: federation(NaiveMix(0.1), replace(MEANS, m=3)),
            "the means: a client releases several means",
        ),
        (lambda: federation(head=Head()), "the head's statistics: they carry no noise"),
        (lambda: federation(data=twice()), "the samples: some samples are there twice"),
    ],
)  # fmt: skip
def test_where_a_part_has_no_guarantee_the_whole_has_none(run: Any, reason: str) -> None:
    found = whole_of(run())
    assert not found
    assert found.epsilon == math.inf
    assert str(found).startswith(f"None for all that leaves clients: {reason}")
    assert privacy(run())["whole"]["epsilon"] is None


def test_a_callback_that_decides_leaves_no_guarantee() -> None:
    def slower(_: Any, run: Federation) -> None:
        run.lr_scale = 0.5

    run = federation(callbacks=[slower])
    assert whole_of(run)
    list(run.run(1))
    assert "a callback has changed the learning rate" in whole_of(run).reason


def test_a_rate_that_was_put_back_is_not_forgotten() -> None:
    """As in a warm-up: round 1 at half the rate, rounds 2 and 3 at all of it."""

    def warm(done: Any, run: Federation) -> None:
        run.lr_scale = 0.5 if done.round == 1 else 1.0

    run, again = federation(callbacks=[warm]), federation()
    list(run.run(3))
    again.restore(run.state())
    for found in (whole_of(run), whole_of(again)):
        assert run.lr_scale == again.lr_scale == 1.0
        assert "a callback has changed the learning rate" in found.reason


@pytest.mark.parametrize(
    ("part", "before"),
    [
        ("updates", {"updates": None}),
        ("updates", {"updates": DPFedAvg(0.5, 1.0)}),
        ("updates", {"chosen": 4}),
        ("means", {"exchange": replace(MEANS, noise=1.0)}),
        ("means", {"exchange": replace(MEANS, m=3)}),
        ("head", {"head": Head()}),
    ],
)
def test_what_was_released_with_other_settings_is_not_forgotten(
    part: str, before: dict[str, Any]
) -> None:
    """Nor where a run goes on from the state of one that went on itself."""

    def begun(**changed: Any) -> Federation:
        return federation(NaiveMix(0.1), **{"exchange": MEANS, **changed})

    first, second, third = begun(**before), begun(), begun()
    list(first.run(1))
    second.restore(first.state())
    third.restore(second.state())
    for run in (second, third):
        list(run.run(2))
        assert whole_of(run).reason == f"the {part}: {OTHERWISE}"
        assert guarantee_of(run).reason == (OTHERWISE if part == "means" else "")


def test_a_head_may_be_set_after_training_without_one() -> None:
    first, second = federation(), federation(head=Head(clip=1.0, noise=9.0))
    list(first.run(1))
    second.restore(first.state())
    list(second.run(2))
    assert whole_of(second)


def test_a_state_of_a_version_without_dp_fedavg_promises_nothing() -> None:
    first, second = federation(updates=None), federation()
    list(first.run(1))
    second.restore({name: t for name, t in first.state().items() if "terms" not in name})
    assert OTHERWISE in whole_of(second).reason
    means, again = (federation(NaiveMix(0.1), MEANS, updates=None) for _ in range(2))
    list(means.run(1))
    again.restore({name: t for name, t in means.state().items() if "terms" not in name})
    assert guarantee_of(again).mu == guarantee_of(means).mu < math.inf


@pytest.mark.parametrize("source", ["own", "noise"])
def test_means_that_do_not_leave_cost_nothing(source: Any) -> None:
    run = federation(NaiveMix(0.1), Exchange(source=source))
    assert list(whole_of(run).parts) == ["updates of one round, 2 of 4 clients in each"]


def test_the_summary_says_it() -> None:
    run = federation(NaiveMix(0.1), MEANS)
    list(run.run(2))
    said, found = privacy(run), whole_of(run)
    assert said["privacy"].startswith(f"{found} The noise follows from the seed")
    assert said["whole"] == {
        "epsilon": found.epsilon, "delta": 1e-5, "parts": found.parts, "reason": "",
    }  # fmt: skip
    assert "for one client replaced: updates of 2 rounds, 2 of 4 clients in each, ε = " in str(
        found
    )
    assert "; means of one release, ε = " in str(found)


def test_whatever_a_client_holds_moves_the_weights_by_two_bounds_over_k() -> None:
    """Brute force, without noise: one client's inputs and labels replaced, of several sizes."""
    rng, ends = np.random.default_rng(3), []
    for _ in range(6):
        x, y = rng.standard_normal((12, 4)) * 10.0 ** rng.integers(-2, 2), rng.integers(0, 3, 12)
        base = arrays(30, clients=4)
        xs, ys = np.array(base.x), np.array(base.y)
        rows = base.clients[1][:12]
        xs[rows], ys[rows] = x[: len(rows)], y[: len(rows)]
        data = from_arrays(xs, ys, [base.clients[k] for k in range(4)], (xs, ys), classes=3)
        run = federation(data=data, updates=DPFedAvg(0.1), chosen=4)
        list(run.run(1))
        ends.append(torch.cat([p.flatten() for p in run.params.values()]).double())
    apart = max(float((a - b).norm()) for a in ends for b in ends)
    assert 0 < apart <= 2 * 0.1 / 4 * (1 + 1e-5)


def test_a_whole_in_words() -> None:
    assert str(Whole(1.0, 1e-5, {"updates": 0.5, "means": 0.25})) == (
        "(1, 1e-05)-differential privacy of all that leaves clients but sizes and losses, for one "
        "client replaced: updates, ε = 0.5 alone; means, ε = 0.25 alone."
    )
