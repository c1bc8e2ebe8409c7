"""λ drawn for means, FedRS's rule beside NaiveMix, balance on means: by hand, on both engines."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedmix import (
    BadInput,
    Balance,
    FedMix,
    MeanMix,
    NaiveMix,
    Objective,
    RestrictedMix,
    losses,
)
from fedmix.core.types import Batch, Params
from fedmix.experiment.presets import experiment
from fedmix.models import Model
from fedmix.objectives.balance import balance
from fedmix.training.engines import Sequential, Vectorised
from tests.training.engines.test_agreement import apart, round_of
from tests.training.engines.test_compiled import compiling

OBJECTIVES: dict[str, Objective] = {
    "drawn": NaiveMix(alpha=1.0, per="sample"),
    "drawn-each": NaiveMix(alpha=0.5, per="sample", lam_per="sample"),
    "drawn-each-one-mean": NaiveMix(alpha=0.5, lam_per="sample"),
    "drawn-logits": FedMix(alpha=2.0, expand="logits"),
    "drawn-logits-each": FedMix(alpha=1.0, expand="logits", per="sample", lam_per="sample"),
    "meanmix": MeanMix(),
    "restricted": RestrictedMix(0.1),
    "restricted-drawn-each": RestrictedMix(alpha=1.0, per="sample", lam_per="sample"),
    "balance": balance(),
    "balance-per-sample": balance(0.5, "sample", lam=0.1),
}


def tensor(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def identity() -> tuple[Model, Params]:
    """f(x) = x, three classes."""
    model = Model(nn.Linear(3, 3, bias=False), losses.cross_entropy)
    return model, {"weight": torch.eye(3, dtype=torch.float64)}


def cross_entropy(z: list[float], y: list[float]) -> float:
    return math.log(sum(math.exp(v) for v in z)) - sum(a * b for a, b in zip(y, z, strict=True))


@pytest.mark.parametrize(
    "objective",
    [
        NaiveMix(alpha=1.0, per="sample", lam_per="sample"),
        FedMix(alpha=1.0, expand="logits", per="sample", lam_per="sample"),
    ],
    ids=["naivemix", "fedmix"],
)
def test_a_ratio_for_each_sample(objective: Objective) -> None:
    """f(x) = 2x and ½f² − f·y. FedMix's logits are exact for a linear model, f(x̃) too.

    (x, y) = (1, 3), (x̄, ȳ) = (2, 1), λ = ¼: f = 2.5, ¾·(3.125 − 7.5) + ¼·(3.125 − 2.5) = −3.125.
    (2, 1), (2, 1), λ = ½: f = 4, and both parts are 8 − 4 = 4. The mean is 0.4375. The third is
    padding.
    """
    model = Model(nn.Linear(1, 1, bias=False), losses.squared_error)
    params = {"weight": tensor([2.0])}
    batch = Batch(
        tensor([1.0], [2.0], [7.0]), tensor([3.0], [1.0], [9.0]), tensor(1.0, 1.0, 0.0),
        torch.tensor(0), mean_x=tensor([2.0], [2.0], [5.0]), mean_y=tensor([1.0], [1.0], [5.0]),
        lam=tensor(0.25, 0.5, 1.0),
    )  # fmt: skip
    assert float(objective(model, params, params, batch)) == pytest.approx(0.4375, abs=1e-12)
    assert objective.needs.each


def test_a_drawn_ratio_is_used_like_a_fixed_one() -> None:
    model, params = identity()
    batch = Batch(
        tensor([1.0, 2.0, 0.5]), tensor([0.0, 1.0, 0.0]), tensor(1.0), torch.tensor(0),
        mean_x=tensor([0.3, -1.0, 2.0]), mean_y=tensor([0.5, 0.0, 0.5]), lam=torch.tensor(0.3),
    )  # fmt: skip
    for drawn, fixed in (
        (NaiveMix(alpha=1.0), NaiveMix(0.3)),
        (FedMix(alpha=1.0, expand="logits"), FedMix(0.3, expand="logits")),
    ):
        one, other = (float(o(model, params, params, batch)) for o in (drawn, fixed))
        assert one == pytest.approx(other, abs=1e-7)


def test_meanmix_by_hand() -> None:
    """f(x) = 2x and ½f² − f·y, λ = ¼: (1, 3) with its mean (2, 1) is at 1¼, f = 2.5, and has
    ¾·(3.125 − 7.5) + ¼·(3.125 − 2.5) = −3.125; (2, 1) with (−2, 4) is at 1, f = 2, and has
    ¾·(2 − 2) + ¼·(2 − 8) = −1.5. The third is padding.
    """
    model = Model(nn.Linear(1, 1, bias=False), losses.squared_error)
    params = {"weight": tensor([2.0])}
    batch = Batch(
        tensor([1.0], [2.0], [7.0]), tensor([3.0], [1.0], [9.0]), tensor(1.0, 1.0, 0.0),
        torch.tensor(0), mean_x=tensor([2.0], [-2.0], [5.0]), mean_y=tensor([1.0], [4.0], [5.0]),
        lam=torch.tensor(0.25, dtype=torch.float64),
    )  # fmt: skip
    value = float(MeanMix()(model, params, params, batch))
    assert value == pytest.approx(-2.3125, abs=1e-12)


def test_meanmix_is_naivemix_with_these_settings() -> None:
    """The same draws, so the same weights to the bit."""
    named = experiment("digits", "meanmix", seed=1)
    assert named.exchange is not None
    assert (named.exchange.m, named.exchange.cutoff) == (5, 5)
    settings = {"objective.lam": None, "objective.alpha": 1.0, "objective.per": "sample"}
    settings |= {"exchange.m": 5, "exchange.cutoff": 5}
    plain = experiment("digits", "naivemix", seed=1).with_settings(settings)
    runs = [e.federation() for e in (named, plain)]
    for run in runs:
        list(run.run(1))
    for name, value in runs[0].params.items():
        assert torch.equal(value, runs[1].params[name])


def test_the_rule_of_fedrs_is_for_own_labels_only() -> None:
    """λ = ¼: x̃ = ¾·(0.4, −1, 2) + ¼·(1.2, 1, −2) = (0.6, −0.5, 1), of which the third is halved
    for the own label, since the client has none of that class.
    """
    model, params = identity()
    batch = Batch(
        tensor([0.4, -1.0, 2.0]), tensor([0.0, 1.0, 0.0]), tensor(1.0), torch.tensor(0),
        mean_x=tensor([1.2, 1.0, -2.0]), mean_y=tensor([0.5, 0.0, 0.5]),
        counts=tensor(3.0, 1.0, 0.0),
    )  # fmt: skip
    own = cross_entropy([0.6, -0.5, 0.5], [0.0, 1.0, 0.0])
    other = cross_entropy([0.6, -0.5, 1.0], [0.5, 0.0, 0.5])
    value = float(RestrictedMix(0.25)(model, params, params, batch))
    assert value == pytest.approx(0.75 * own + 0.25 * other, abs=1e-12)
    plain = float(NaiveMix(0.25)(model, params, params, batch))
    assert float(RestrictedMix(0.25, scale=1.0)(model, params, params, batch)) == plain


def test_balance_asks_for_uniform_outputs_at_means() -> None:
    """A mean's loss is log Σ exp z − mean z; with one for each sample, padding is left out."""
    model, params = identity()
    z, other = [0.5, -1.0, 2.0], [3.0, 0.0, 0.0]
    third = [1 / 3] * 3
    x, y = torch.zeros(3, 3, dtype=torch.float64), torch.zeros(3, 3, dtype=torch.float64)
    batch = Batch(x, y, tensor(1.0, 1.0, 0.0), torch.tensor(0))
    one = batch._replace(mean_x=tensor(z), mean_y=tensor([1.0, 0.0, 0.0]))
    value = float(Balance(0.5)(model, params, params, one))
    assert value == pytest.approx(0.5 * cross_entropy(z, third), abs=1e-12)
    each = batch._replace(mean_x=tensor(z, other, [9.0, 9.0, 9.0]), mean_y=y)
    value = float(Balance(2.0, per="sample")(model, params, params, each))
    expected = cross_entropy(z, third) + cross_entropy(other, third)
    assert value == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_engines_agree(name: str) -> None:
    one = round_of("digits_cnn", OBJECTIVES[name], Sequential(), exactly=True)
    for engine in (Vectorised(), Vectorised(chunk=2)):
        assert apart(one, round_of("digits_cnn", OBJECTIVES[name], engine, exactly=True)) < 1e-12


def test_the_compiled_step_agrees() -> None:
    objective = RestrictedMix(alpha=1.0, per="sample", lam_per="sample")
    with compiling():
        fast = round_of("digits_cnn", objective, Vectorised(compile=True))
    assert apart(fast, round_of("digits_cnn", objective, Sequential())) < 1e-5


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: NaiveMix(), "NaiveMix: give either alpha .* or a fixed lam"),
        (lambda: NaiveMix(0.1, alpha=1.0), "NaiveMix: give either alpha .* or a fixed lam"),
        (lambda: NaiveMix(alpha=0.0), "NaiveMix: alpha=0.0 must be positive"),
        (lambda: NaiveMix(0.1, lam_per="sample"), "lam_per='sample' is for a drawn λ"),
        (lambda: FedMix(), "FedMix: give either alpha .* or a fixed lam"),
        (lambda: FedMix(alpha=1.0), "no lower bound; give expand='logits'"),
        (lambda: RestrictedMix(0.1, scale=2.0), r"RestrictedMix: scale=2.0 is outside \[0, 1\]"),
        (lambda: RestrictedMix(), "RestrictedMix: give either alpha"),
        (lambda: MeanMix(alpha=0.0), "MeanMix: alpha=0.0 must be positive"),
        (lambda: Balance(-1.0), "Balance: weight=-1.0 must be 0 or more"),
    ],
)
def test_bad_settings_are_refused(build: Any, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        build()
