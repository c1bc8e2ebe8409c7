"""Server steps against the papers' formulas in a plain loop, and what a run makes of them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedmix import (
    BadInput,
    Diverged,
    Exchange,
    Federation,
    FedMix,
    Hidden,
    NaiveMix,
    Objective,
    Proximal,
    Supervised,
    Training,
    record,
)
from fedmix.core.types import Params
from fedmix.models import initialised
from fedmix.server_steps import FedAdam, FedAvg, FedAvgM, FedYogi, ServerStep
from fedmix.training.engines import Engine, Sequential, Vectorised
from tests.synthetic import arrays
from tests.training.engines.test_compiled import compiling

Array = np.ndarray[Any, Any]
STEPS: dict[str, ServerStep] = {
    "fedavg": FedAvg(),
    "fedavgm": FedAvgM(lr=0.7, momentum=0.8),
    "fedadam": FedAdam(lr=0.1, beta1=0.8, beta2=0.9, tau=0.05),
    "fedyogi": FedYogi(lr=0.1, beta1=0.8, beta2=0.9, tau=0.05),
}
WEIGHTS = np.array([0.5, -1.0, 2.0])
MEANS = np.array([[0.6, -1.2, 2.0], [0.1, 0.3, 5.0], [0.7, 0.2, 4.9], [0.7, 0.2, 4.9]])


def tensor(values: Array) -> Params:
    return {"w": torch.from_numpy(values.copy())}


def stepped(step: ServerStep) -> list[Array]:
    """The weights after each of the means above."""
    weights = tensor(WEIGHTS)
    state, found = step.init(weights), []
    for mean in MEANS:
        state, weights = step(state, weights, tensor(mean))
        found.append(weights["w"].numpy())
    return found


# By hand


def test_fedavg_is_the_mean_itself() -> None:
    step, weights, mean = FedAvg(), tensor(WEIGHTS), tensor(MEANS[0])
    state, moved = step(step.init(weights), weights, mean)
    assert state == {}
    assert moved["w"] is mean["w"]


def test_fedavgm_by_hand() -> None:
    """From 1 to means of 2 and 2: v = 1, w = 1.5; then v = 0.5·1 + 0.5 = 1, w = 2."""
    step, weights = FedAvgM(lr=0.5, momentum=0.5), {"w": torch.tensor([1.0])}
    state = step.init(weights)
    for expected in (1.5, 2.0):
        state, weights = step(state, weights, {"w": torch.tensor([2.0])})
        assert weights["w"].tolist() == [expected]


def test_fedavgm_without_momentum_and_with_a_rate_of_one_is_fedavg() -> None:
    for found, mean in zip(stepped(FedAvgM(lr=1.0, momentum=0.0)), MEANS, strict=True):
        np.testing.assert_allclose(found, mean, rtol=0, atol=1e-15)


def test_fedadam_by_hand() -> None:
    """Δ = 1 from v = τ² = 1: m = 0.5, v = 0.5·1 + 0.5·1 = 1, w = 0 + 2·0.5 / (1 + 1) = 0.5."""
    step, weights = FedAdam(lr=2.0, beta1=0.5, beta2=0.5, tau=1.0), {"w": torch.tensor([0.0])}
    state, moved = step(step.init(weights), weights, {"w": torch.tensor([1.0])})
    assert moved["w"].tolist() == [0.5]
    assert sorted(t.tolist() for t in state.values()) == [[0.5], [1.0]]


@pytest.mark.parametrize(("mean", "v"), [(2.0, 1 + 0.25 * 4), (0.5, 1 - 0.25 * 0.25), (1.0, 1.0)])
def test_fedyogis_second_moment_goes_up_or_down_by_the_sign(mean: float, v: float) -> None:
    """v = 1 and β2 = 0.75: it goes towards Δ² by a quarter of Δ², not of the distance to it."""
    step, weights = FedYogi(lr=1.0, beta1=0.0, beta2=0.75, tau=1.0), {"w": torch.tensor([0.0])}
    state, moved = step(step.init(weights), weights, {"w": torch.tensor([mean])})
    assert state["v.w"].tolist() == [v]
    assert moved["w"].item() == pytest.approx(mean / (v**0.5 + 1))


def plain(name: str, lr: float, b1: float, b2: float, tau: float) -> list[Array]:
    """Reddi et al. 2021, Algorithm 2, in numpy."""
    x, m, v, found = WEIGHTS.copy(), np.zeros(3), np.full(3, tau**2), []
    for mean in MEANS:
        delta = mean - x
        m = b1 * m + (1 - b1) * delta
        yogi = v - (1 - b2) * delta**2 * np.sign(v - delta**2)
        v = b2 * v + (1 - b2) * delta**2 if name == "fedadam" else yogi
        x = x + lr * m / (np.sqrt(v) + tau)
        found.append(x)
    return found


@pytest.mark.parametrize("name", ["fedadam", "fedyogi"])
def test_adaptive_steps_are_those_of_algorithm_2(name: str) -> None:
    for ours, theirs in zip(stepped(STEPS[name]), plain(name, 0.1, 0.8, 0.9, 0.05), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-14)


def test_fedavgm_in_a_plain_loop() -> None:
    x, v = WEIGHTS, np.zeros(3)
    for ours, mean in zip(stepped(STEPS["fedavgm"]), MEANS, strict=True):
        v = 0.8 * v + (mean - x)
        x = x + 0.7 * v
        np.testing.assert_allclose(ours, x, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: FedAvgM(lr=0.0), r"FedAvgM: lr=0.0 must be positive and finite"),
        (lambda: FedAvgM(momentum=1.0), r"FedAvgM: momentum=1.0 is outside \[0, 1\)"),
        (lambda: FedAdam(lr=float("inf")), r"FedAdam: lr=inf must be positive and finite"),
        (lambda: FedAdam(tau=0.0), r"FedAdam: tau=0.0 must be positive"),
        (lambda: FedAdam(beta1=-0.1), r"FedAdam: beta1=-0.1 is outside"),
        (lambda: FedYogi(beta2=1.0), r"FedYogi: beta2=1.0 is outside"),
    ],
)
def test_bad_settings_are_refused(wrong: Callable[[], ServerStep], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        wrong()


# In a federation


def federation(
    server: ServerStep | None,
    objective: Objective | None = None,
    engine: Engine | None = None,
) -> Federation:
    objective = objective or Supervised()
    return Federation(
        initialised(lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), 0),
        arrays(30, clients=4),
        objective,
        Training(3, batch_size=4, lr=0.1, momentum=0.5),
        exchange=Exchange(m=2) if objective.needs.means else None,
        engine=engine,
        server=server,
        seed=2,
    )


def trained(run: Federation, rounds: int = 3) -> Params:
    list(run.run(rounds))
    return run.params


def test_the_first_round_takes_the_step_from_the_clients_mean() -> None:
    """With FedAvg the new weights are the mean Δ + w, from which a plain loop steps."""
    before = federation(None).params
    mean = trained(federation(FedAvg()), 1)
    found = trained(federation(STEPS["fedadam"]), 1)
    for name, w in before.items():
        delta = (mean[name] - w).double()
        v = 0.9 * 0.05**2 + 0.1 * delta**2
        expected = w.double() + 0.1 * 0.2 * delta / (v.sqrt() + 0.05)
        torch.testing.assert_close(found[name].double(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize(
    "objective",
    [Supervised(), FedMix(0.1), NaiveMix(0.1) + Proximal(0.1), Hidden(FedMix(0.1), 1)],
    ids=["supervised", "fedmix", "naivemix+prox", "hidden"],
)
def test_both_engines_agree(name: str, objective: Objective) -> None:
    one, other = (
        trained(federation(STEPS[name], objective, engine))
        for engine in (Sequential(), Vectorised())
    )
    for weight in one:
        torch.testing.assert_close(one[weight], other[weight], rtol=0, atol=1e-5)


def test_the_compiled_step_agrees() -> None:
    with compiling():
        one = trained(federation(STEPS["fedyogi"], FedMix(0.1), Vectorised(compile=True)))
    other = trained(federation(STEPS["fedyogi"], FedMix(0.1)))
    for weight in one:
        torch.testing.assert_close(one[weight], other[weight], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", STEPS)
def test_a_stopped_run_goes_on_as_if_it_had_not(name: str) -> None:
    whole, first, second = (federation(STEPS[name], FedMix(0.1)) for _ in range(3))
    rounds = list(whole.run(5))
    begun = list(first.run(2))
    saved = {n: t.clone() for n, t in first.state().items()}
    kept = {"fedavg": 0, "fedavgm": 1}.get(name, 2) * len(first.params)
    assert len([n for n in saved if n.startswith("server.")]) == kept
    second.restore(saved)
    assert begun + list(second.run(5)) == rounds
    assert all(torch.equal(p, second.params[n]) for n, p in whole.params.items())


def test_a_recorded_run_goes_on_as_if_it_had_not(tmp_path: Path) -> None:
    record(federation(STEPS["fedadam"]), tmp_path, rounds=2, quiet=True)
    second = federation(STEPS["fedadam"])
    record(second, tmp_path, rounds=4, quiet=True)
    whole = trained(federation(STEPS["fedadam"]), 4)
    assert all(torch.equal(p, second.params[n]) for n, p in whole.items())


def test_a_state_of_another_server_step_is_refused() -> None:
    first = federation(STEPS["fedadam"])
    list(first.run(1))
    for other in ("fedavg", "fedavgm"):
        with pytest.raises(BadInput, match="this state belongs to another server step; start anew"):
            federation(STEPS[other]).restore(first.state())


def test_a_server_step_that_fails_leaves_the_round_undone() -> None:
    class Fails(FedAvgM):
        def __call__(self, state: Params, weights: Params, mean: Params) -> tuple[Params, Params]:
            calls.append(1)
            if len(calls) == 3:  # the first is a trial
                raise KeyboardInterrupt
            return super().__call__(state, weights, mean)

    calls: list[int] = []
    run, whole = federation(Fails()), federation(FedAvgM())
    with pytest.raises(KeyboardInterrupt):
        list(run.run(3))
    assert run.round == 1
    list(run.run(3))
    list(whole.run(3))
    assert run.traffic == whole.traffic
    assert all(torch.equal(p, run.params[n]) for n, p in whole.params.items())


def returns(what: Callable[[Params, Params], Any], first: Any = None) -> ServerStep:
    class Own(ServerStep):
        def init(self, _: Params) -> Params:
            return {} if first is None else first

        def __call__(self, state: Params, _: Params, mean: Params) -> tuple[Params, Params]:
            given: tuple[Params, Params] = what(state, mean)
            return given

    return Own()


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (returns(lambda _, mean: mean), "must return a state and weights, as a tuple"),
        (returns(lambda state, _: (state, {})), "returns weights with other names"),
        (returns(lambda state, mean: (state, {n: t.double() for n, t in mean.items()})), "types"),
        (returns(lambda _, mean: ({"k": torch.ones(2)}, mean)), "its `init` gives the first"),
        (returns(lambda _, mean: ({"k": 1}, mean)), "a dict of tensors by name"),
        (returns(lambda state, mean: (state, mean), {"k": 1}), r"init must return a state as a"),
        (
            returns(lambda state, mean: (state, {n: t.add_(1) for n, t in mean.items()})),
            "changes its arguments; return new tensors",
        ),
    ],
)  # fmt: skip
def test_a_step_that_breaks_the_rules_is_refused_before_the_first_round(
    step: ServerStep, said: str
) -> None:
    with pytest.raises(BadInput, match=said) as caught:
        federation(step)
    assert "\n" not in str(caught.value)


def test_a_step_that_overflows_is_named_and_no_client_is() -> None:
    """lr·m/(√v + τ) of about 1e39·0.1 is beyond float32; the round is not done."""
    run = federation(FedAdam(lr=1e39))
    with pytest.raises(Diverged, match=r"round 1, the server step: FedAdam: .* NaN or infinite"):
        trained(run)
    assert run.round == 0
    assert all(torch.equal(p, run.model.init()[n]) for n, p in run.params.items())


@pytest.mark.parametrize("engine", [Sequential(), Vectorised()])
def test_weights_that_are_too_large_for_clients_are_the_steps_fault(engine: Engine) -> None:
    """Weights of about 1e30 are finite, and the product of two layers' is not: a client fails."""
    net = initialised(lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), 0)
    run = Federation(
        net, arrays(30, clients=4), Supervised(), Training(3, lr=0.1), engine=engine,
        server=FedAdam(lr=1e30),
    )  # fmt: skip
    with pytest.raises(
        Diverged, match=r"round 2, client \d, step 0: .* that the server step FedAdam made"
    ):
        trained(run)


def test_where_clients_average_alone_a_client_is_named() -> None:
    with pytest.raises(Diverged) as caught:
        list(federation(FedAvg(), NaNs()).run(3))
    assert "server" not in str(caught.value)


@dataclass(frozen=True)
class NaNs(Supervised):
    """A loss that overflows once weights have moved."""

    def __call__(self, model: Any, params: Params, anchor: Params, batch: Any) -> torch.Tensor:
        away = sum((params[n] - anchor[n]).square().sum() for n in params)
        return super().__call__(model, params, anchor, batch) + 1e30 * away * 1e30
