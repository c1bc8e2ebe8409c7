"""Objectives times a number, and plain functions as objectives: the weights of formulas by hand."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedmix import BadInput, Federation, FedMix, Hidden, Proximal, Supervised, Training, record
from fedmix.core.types import Batch, Params
from fedmix.models import Model
from fedmix.objectives import batch_mean
from fedmix.objectives.base import Function, Objective, Phase, Weighted, parts
from fedmix.runs.record import settings_of
from fedmix.training.engines import Engine, Sequential, Vectorised
from tests.synthetic import ENGINES, NAMES, arrays

TRAINING = Training(2, batch_size=4, lr=0.1)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def trained(objective: Any, training: Training = TRAINING, engine: Engine | None = None) -> Params:
    federation = Federation(net(), arrays(), objective, training, engine=engine)
    list(federation.run(1))
    return federation.params


def same(one: Params, other: Params) -> None:
    for name, p in one.items():
        torch.testing.assert_close(p, other[name], rtol=1e-5, atol=1e-6)


def plain(model: Model, params: Params, anchor: Params, batch: Batch) -> Tensor:  # noqa: ARG001
    return batch_mean(model.loss(model(params, batch.x, batch.key), batch.y), batch.mask)


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
def test_half_an_objective_is_half_the_rate(engine: Engine) -> None:
    """Without momentum, a step is the rate times the gradient."""
    half = Training(2, batch_size=4, lr=0.05)
    same(trained(0.5 * FedMix(0.1), engine=engine), trained(FedMix(0.1), half, engine))
    same(trained(FedMix(0.1) * 0.5, engine=engine), trained(FedMix(0.1), half, engine))
    assert 0.5 * FedMix(0.1) == Weighted(0.5, FedMix(0.1))


def test_weights_of_terms_add_up() -> None:
    same(trained(0.25 * Supervised() + 0.75 * Supervised()), trained(Supervised()))
    same(trained(Supervised() + 0.5 * Proximal(0.2)), trained(Supervised() + Proximal(0.1)))
    same(trained(0.5 * (Supervised() + Proximal(0.2))), trained(0.5 * Supervised() + Proximal(0.1)))


def test_each_phase_has_the_weight() -> None:
    hidden = Hidden(FedMix(0.1), layer=1)
    assert (2 * hidden).phases() == (Phase(2 * hidden, 1), Phase(2 * Supervised(), 0))
    same(trained(0.5 * hidden), trained(hidden, Training(2, batch_size=4, lr=0.05)))
    assert (2 * FedMix(0.1)).needs == FedMix(0.1).needs
    assert FedMix(0.1) in list(parts(2 * FedMix(0.1) + Proximal(1)))


@pytest.mark.parametrize("wrong", [math.nan, math.inf, True, "0.5", None])
def test_a_weight_that_is_no_number_is_refused(wrong: Any) -> None:
    with pytest.raises(BadInput, match="an objective's weight"):
        wrong * Supervised()


@pytest.mark.parametrize("engine", [*ENGINES, Vectorised(compile=True)], ids=[*NAMES, "compiled"])
def test_a_function_trains_as_the_objective_that_it_is(engine: Engine) -> None:
    same(trained(plain, engine=engine), trained(Supervised(), engine=Sequential()))


def test_functions_are_added() -> None:
    expected = trained(Supervised() + Proximal(0.1))
    same(trained(plain + Proximal(0.1)), expected)
    same(trained(Proximal(0.1) + plain), expected)
    same(trained(0.5 * Function(plain) + 0.5 * Function(plain) + Proximal(0.1)), expected)

    class Method:
        def loss(self, *given: Any) -> Tensor:
            return plain(*given)

    for callable_ in (lambda *given: plain(*given), partial(plain), Method().loss):
        same(trained(callable_), trained(Supervised()))


def test_what_is_no_objective_is_refused() -> None:
    for wrong, said in (
        (FedMix, "`objective` is the class FedMix; give an Objective, such as"),
        (nn.CrossEntropyLoss(), "`objective` is of type CrossEntropyLoss; give an Objective"),
        ("fedmix", "`objective` is of type str; give an Objective"),
        (None, "`objective` is of type NoneType"),
        (lambda outputs, y: (outputs - y).mean(), r"the function <lambda> with other arguments; "
            r"make them \(model, params, anchor, batch\), and give losses of outputs and targets"),
    ):  # fmt: skip
        with pytest.raises(BadInput, match=said):
            Federation(net(), arrays(), wrong, TRAINING)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="`objective` is of type int"):
        Supervised() + 3  # type: ignore[operator]


def test_a_function_keeps_the_rules_of_objectives() -> None:
    def careless(model: Model, params: Params, anchor: Params, batch: Batch) -> Tensor:  # noqa: ARG001
        return model.loss(model(params, batch.x, batch.key), batch.y).mean()

    with pytest.raises(BadInput, match="the objective careless lets padding count"):
        Federation(net(), arrays(), careless, TRAINING)


def test_what_is_recorded_names_weights_and_functions(tmp_path: Path) -> None:
    def name(objective: Any) -> str:
        described = settings_of(Federation(net(), arrays(), objective, TRAINING))
        return str(described["objective"]["name"])

    assert name(0.5 * Supervised()) == "0.5*fedavg"
    assert name(0.5 * FedMix(0.1) + Function(plain)) == "0.5*fedmix+plain"
    assert repr(Federation(net(), arrays(), plain, TRAINING)).endswith("plain, 0 rounds done)")
    assert "first=plain, second=Supervised()" in repr(Function(plain) + Supervised())

    def one(weight: float) -> Federation:
        return Federation(net(), arrays(), weight * Supervised(), TRAINING)

    record(one(0.5), tmp_path / "run", 1, quiet=True)
    with pytest.raises(BadInput, match="objective"):
        record(one(0.25), tmp_path / "run", 2, quiet=True)


def test_an_objective_of_ones_own_is_multiplied_too() -> None:
    class Own(Objective):
        def __call__(self, *given: Any) -> Tensor:
            return plain(*given)

    same(trained(3 * Own()), trained(3 * Supervised()))
