"""DP-FedAvg: clipped, summed, noised and divided by hand; the same on every engine."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from fedmix import (
    BadInput,
    DPFedAvg,
    Exchange,
    Experiment,
    Federation,
    FedMix,
    Objective,
    Supervised,
    Training,
)
from fedmix.core.types import Params
from fedmix.data import from_arrays
from fedmix.models import initialised
from fedmix.server_steps import FedAdam, ServerStep
from fedmix.training.aggregation import Average, Updates
from fedmix.training.engines import Engine, Sequential, Vectorised
from tests.synthetic import arrays
from tests.training.engines.test_compiled import compiling

RNG = np.random.default_rng


def vectors(*rows: tuple[float, ...]) -> Params:
    """Updates of clients whose model has a weight of two numbers and a single one."""
    values = torch.tensor(rows, dtype=torch.float32)
    return {"a": values[:, :2], "b": values[:, 2]}


START = {"a": torch.tensor([1.0, 1.0]), "b": torch.tensor(1.0)}


def test_updates_are_clipped_over_all_layers_together_by_hand() -> None:
    """(2, 3, 6) has norm 7, and with a bound of 3.5 half of it is left; (1, 0, 2) stays."""
    clipped = DPFedAvg(3.5).clipped(vectors((3.0, 4.0, 7.0), (2.0, 1.0, 3.0)), START)
    torch.testing.assert_close(clipped["a"], torch.tensor([[1.0, 1.5], [1.0, 0.0]]))
    torch.testing.assert_close(clipped["b"], torch.tensor([3.0, 2.0]))


def test_the_average_by_hand() -> None:
    """Two clients of K = 4: the sum of (1, 1.5, 3) and (1, 0, 2) over 4, whatever n_k is."""
    average = Average(START, {0: 1000, 1: 1}, DPFedAvg(3.5))
    for k, row in enumerate([(3.0, 4.0, 7.0), (2.0, 1.0, 3.0)]):
        average.add(Updates([k], vectors(row), torch.zeros(1)))
    mean = average.mean(["a", "b"], 4, RNG(0))
    torch.testing.assert_close(mean["a"], torch.tensor([1.5, 1.375]))
    torch.testing.assert_close(mean["b"], torch.tensor(2.25))


def test_one_client_moves_the_sum_by_twice_the_bound_at_most() -> None:
    """Brute force over many replaced updates, in float32; opposite ones reach the bound."""
    rule, rng, worst = DPFedAvg(0.3), RNG(1), 0.0
    for scale in (1e-3, 1.0, 1e4, 1e30):
        many = torch.from_numpy(rng.standard_normal((200, 3)) * scale).float()
        start = {"w": torch.from_numpy(rng.standard_normal(3)).float()}
        clipped = rule.clipped({"w": many}, start)["w"].double()
        assert float(clipped.norm(dim=1).max()) <= 0.3  # and not 0.3·(1 + 2^-24)
        worst = max(worst, float(torch.cdist(clipped, clipped).max()))
        coarse = rule.clipped({"w": many.bfloat16()}, {"w": start["w"].bfloat16()})["w"].double()
        assert float(coarse.norm(dim=1).max()) <= 0.3
    ends = rule.clipped({"w": torch.tensor([[9.0], [-9.0]])}, {"w": torch.zeros(1)})["w"]
    assert 0.58 < worst <= 0.6
    assert float(ends[0] - ends[1]) == pytest.approx(0.6, rel=1e-6)


def test_the_noise_has_the_deviation_that_is_said() -> None:
    """z·C/K = 2·0.5/4 each; n·s²/σ² is chi-square with n degrees. Frozen ones get none."""
    n = 20_000
    weights = {"w": torch.ones(n), "frozen": torch.ones(3), "u": torch.ones(2, 5)}
    zero = {name: torch.zeros_like(t, dtype=torch.float64) for name, t in weights.items()}
    mean = DPFedAvg(0.5, 2.0).mean(zero, weights, ["w", "u"], 4, RNG(3))
    drawn = (mean["w"] - 1).double()
    assert abs(float(drawn.square().mean()) / 0.25**2 - 1) < 5 * math.sqrt(2 / n)
    assert abs(float(drawn.mean())) < 5 * 0.25 / math.sqrt(n)
    assert torch.equal(mean["frozen"], weights["frozen"])
    assert not torch.equal(mean["u"], weights["u"])


def federation(
    rule: DPFedAvg | None,
    engine: Engine | None = None,
    objective: Objective | None = None,
    server: ServerStep | None = None,
    seed: int = 2,
) -> Federation:
    objective = objective or Supervised()
    return Federation(
        initialised(lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), 0),
        arrays(30, clients=4), objective, Training(3, batch_size=4, lr=0.1, momentum=0.5),
        exchange=Exchange(m="all") if objective.needs.means else None,
        engine=engine, server=server, updates=rule, seed=seed,
    )  # fmt: skip


def trained(run: Federation, rounds: int = 3) -> Params:
    list(run.run(rounds))
    return run.params


def moved(run: Federation) -> float:
    """How far the weights are from the initial ones."""
    start = run.model.init()
    return math.sqrt(sum(float((p - start[n]).square().sum()) for n, p in run.params.items()))


def test_a_wide_bound_changes_nothing_where_clients_have_as_many_samples() -> None:
    """Then 1/K Σ is Σ p_k, to rounding; and a narrow bound is how far one round moves at most."""
    x, y = arrays(30, clients=4).x[:24], arrays(30, clients=4).y[:24]
    even = from_arrays(x, y, np.arange(24).reshape(4, 6), (x, y), classes=3)
    net = initialised(lambda: nn.Linear(4, 3), 0)
    ours, plain, short = (
        Federation(net, even, Supervised(), Training(3, batch_size=4, lr=0.1), updates=rule)
        for rule in (DPFedAvg(1e6), None, DPFedAvg(1e-3))
    )
    for name, weight in trained(ours).items():
        torch.testing.assert_close(weight, trained(plain)[name], rtol=0, atol=1e-6)
    list(short.run(1))
    assert 0 < moved(short) <= 1.01e-3


@pytest.mark.parametrize("objective", [Supervised(), FedMix(0.1)], ids=["fedavg", "fedmix"])
@pytest.mark.parametrize("server", [None, FedAdam()], ids=["fedavg", "fedadam"])
def test_engines_agree(objective: Objective, server: ServerStep | None) -> None:
    rule = DPFedAvg(0.2, 0.5)
    one = trained(federation(rule, Sequential(), objective, server))
    for engine in (Vectorised(), Vectorised(chunk=1)):
        other = trained(federation(rule, engine, objective, server))
        for name in one:
            torch.testing.assert_close(one[name], other[name], rtol=0, atol=1e-5)
    assert not torch.equal(one["0.bias"], trained(federation(DPFedAvg(0.2)))["0.bias"])


def test_the_compiled_step_agrees() -> None:
    with compiling():
        one = trained(federation(DPFedAvg(0.2, 0.5), Vectorised(compile=True)))
    other = trained(federation(DPFedAvg(0.2, 0.5), Sequential()))
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=0, atol=1e-5)


def test_a_run_that_goes_on_gets_the_same_noise_and_another_seed_another() -> None:
    """Also from a state in another order, as files have it."""
    rule = DPFedAvg(0.2, 1.0)
    whole, first, second = (federation(rule) for _ in range(3))
    list(first.run(2))
    second.restore(dict(reversed(first.state().items())))
    assert all(torch.equal(p, trained(second)[n]) for n, p in trained(whole).items())
    with_noise = [trained(federation(rule, seed=s), 1)["2.bias"] for s in (2, 3)]
    without = [trained(federation(DPFedAvg(0.2), seed=s), 1)["2.bias"] for s in (2, 3)]
    drawn = [a - b for a, b in zip(with_noise, without, strict=True)]
    assert not torch.allclose(drawn[0], drawn[1], atol=1e-3)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"clip": 0.0}, r"updates.clip=0.0 must be positive and finite"),
        ({"clip": math.inf}, r"updates.clip=inf must be positive and finite"),
        ({"clip": 1.0, "noise_multiplier": -1.0}, r"updates.noise_multiplier=-1.0 must lie"),
        ({"clip": 1.0, "noise_multiplier": math.nan}, r"updates.noise_multiplier=nan must lie"),
    ],
)
def test_bad_settings_are_refused(wrong: dict[str, float], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        DPFedAvg(**wrong)


def test_clients_that_a_function_chooses_are_refused() -> None:
    with pytest.raises(BadInput, match="`choose` and `updates` do not go together"):
        Federation(
            nn.Linear(4, 3), arrays(30, clients=4), Supervised(), Training(2),
            updates=DPFedAvg(1.0), choose=lambda *_: [0, 1],
        )  # fmt: skip


def test_an_experiment_has_a_section_for_it() -> None:
    plain = Experiment.of(
        {
            "data": {"name": "digits"}, "model": {"name": "digits_cnn"},
            "objective": {"name": "fedavg"}, "training": {"clients_per_round": 5},
        }
    )  # fmt: skip
    private = plain.with_settings({"updates.clip": 1.0, "updates.noise_multiplier": 4.0})
    assert private.build_updates() == DPFedAvg(1.0, 4.0)
    assert private.federation().updates == DPFedAvg(1.0, 4.0)
    assert plain.build_updates() is None
    assert private.id != plain.id
    assert Experiment.of(private.values()) == private
    with pytest.raises(BadInput, match=r"updates\.clip is missing; give it a value"):
        plain.with_settings({"updates.noise_multiplier": 4.0})


def test_many_clients_are_clipped_a_block_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.from_numpy(RNG(5).standard_normal((7, 3))).float()
    found = []
    for most in (2**24, 7, 1):  # all at once, two clients, one
        monkeypatch.setattr("fedmix.training.aggregation.MOST", most)
        average = Average({"w": torch.zeros(3)}, dict.fromkeys(range(7), 1), DPFedAvg(0.5))
        average.add(Updates(list(range(7)), {"w": rows}, torch.zeros(7)))
        found.append(average.mean(["w"], 7, RNG(0))["w"])
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
