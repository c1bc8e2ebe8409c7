"""Losses and scores of a sample with several targets, by hand."""

import math
from typing import Any

import pytest
import torch

from fedmix import (
    BadInput,
    Federation,
    FedMix,
    NaiveMix,
    Objective,
    Supervised,
    Training,
    data,
    functional,
    losses,
    models,
)
from tests.synthetic import ENGINES, arrays


def test_squared_errors_of_several_targets() -> None:
    """Errors 1, 2 and 3: ½·(1 + 4 + 9) = 7 is shown as the loss, and (1 + 4 + 9) / 3 as mse."""
    outputs, targets = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.0, 4.0, 0.0])
    assert float(losses.squared_error.report(outputs, targets)) == 7.0
    assert float(losses.squared_error.score(outputs, targets)) == pytest.approx(14 / 3)
    # What is minimised leaves ½·4² out: ½·(1 + 4 + 9) − 2·4.
    assert float(losses.squared_error.value(outputs, targets)) == -1.0


def test_cross_entropy_and_accuracy_of_one_sample() -> None:
    """Logits (0, ln 3) are probabilities (¼, ¾); the larger label decides what is right."""
    outputs = torch.tensor([0.0, math.log(3)], dtype=torch.float64)
    value = losses.cross_entropy.value(outputs, torch.tensor([0.25, 0.75]))
    assert float(value) == pytest.approx(-0.25 * math.log(0.25) - 0.75 * math.log(0.75))
    for labels, right in (([0.25, 0.75], 1.0), ([0.75, 0.25], 0.0)):
        score = losses.cross_entropy.score(outputs, torch.tensor(labels))
        assert (float(score), score.dtype) == (right, torch.float64)


# Weights of classes


Z = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
HARD = torch.tensor([0, 2, 1, 1, 0, 2])
SOFT = torch.randn(6, 3, generator=torch.Generator().manual_seed(1)).softmax(-1)
WEIGHTS = [0.5, 2.0, 3.0]


def torchs(targets: torch.Tensor, reduction: str) -> torch.Tensor:
    weights = torch.tensor(WEIGHTS)
    return torch.nn.functional.cross_entropy(Z, targets, weights, reduction=reduction)


def test_weights_of_classes_are_torchs() -> None:
    """By sample, for classes and for soft labels; a mean of soft labels is over their number."""
    weighted = losses.cross_entropy.weighted(WEIGHTS)
    hard = torch.nn.functional.one_hot(HARD, 3).float()
    torch.testing.assert_close(weighted(Z, hard), torchs(HARD, "none"))
    torch.testing.assert_close(weighted(Z, hard).sum(), torchs(HARD, "sum"))
    torch.testing.assert_close(weighted(Z, SOFT), torchs(SOFT, "none"))
    torch.testing.assert_close(weighted(Z, SOFT).mean(), torchs(SOFT, "mean"))


def test_a_batch_of_classes_is_divided_by_its_number_and_not_by_its_weights() -> None:
    """Two of each class weigh 2·(0.5 + 2 + 3) = 11, and torch divides by that instead of 6."""
    hard = torch.nn.functional.one_hot(HARD, 3).float()
    ours = losses.cross_entropy.weighted(WEIGHTS)(Z, hard).mean()
    torch.testing.assert_close(ours, torchs(HARD, "mean") * 11 / 6)
    balanced = losses.cross_entropy.weighted([6 / (3 * 2)] * 3)  # n / (C·n_c): torch's mean again
    torch.testing.assert_close(balanced(Z, hard).mean(), torch.nn.functional.cross_entropy(Z, HARD))


@pytest.mark.parametrize(
    "loss", [losses.cross_entropy, losses.squared_error], ids=lambda loss: loss.name
)
def test_a_weighted_loss_is_the_sum_over_classes_and_linear(loss: losses.Loss) -> None:
    """Σ_c w_c·y_c·ℓ(z, e_c), so that a mean of labels has the mean of their losses."""
    weighted = loss.weighted(WEIGHTS)
    by_class = torch.stack([loss(Z, torch.eye(3)[c].expand_as(Z)) for c in range(3)], 1)
    torch.testing.assert_close(weighted(Z, SOFT), (torch.tensor(WEIGHTS) * SOFT * by_class).sum(1))
    mean = weighted(Z, SOFT.mean(0, keepdim=True))
    torch.testing.assert_close(mean, torch.stack([weighted(Z, y[None]) for y in SOFT]).mean(0))
    torch.testing.assert_close(loss.weighted([1, 1, 1])(Z, SOFT), loss(Z, SOFT))


def test_what_is_reported_has_no_weights() -> None:
    weighted = losses.cross_entropy.weighted(WEIGHTS)
    assert torch.equal(weighted.report(Z, SOFT), losses.cross_entropy.report(Z, SOFT))
    assert weighted.name == "cross_entropy weighted 0.5 2 3"
    assert weighted != losses.cross_entropy


def test_weights_count_in_a_loop_of_ones_own_too() -> None:
    """λ = 0: the loss of the samples alone."""
    torch.manual_seed(0)
    net, x, weighted = (
        torch.nn.Linear(4, 3),
        torch.randn(6, 4),
        losses.cross_entropy.weighted(WEIGHTS),
    )
    got = functional.naivemix_loss(
        net, x, HARD, torch.zeros(1, 4), SOFT[:1], lam=0.0, loss=weighted
    )
    each = torch.nn.functional.cross_entropy(net(x), HARD, torch.tensor(WEIGHTS), reduction="none")
    torch.testing.assert_close(got, each.mean())


@pytest.mark.parametrize(
    "wrong", [[], [0, 0], [1, -1], [1, math.nan], [1, math.inf], [True, 1], 2, "12", [[1, 2]]]
)
def test_weights_that_are_none_are_refused(wrong: Any) -> None:
    with pytest.raises(BadInput, match="give a number of 0 or more for each class, not all 0"):
        losses.cross_entropy.weighted(wrong)


def test_weights_need_a_loss_that_is_linear_in_its_target() -> None:
    def off(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (z - y).abs().sum(-1)

    with pytest.raises(BadInput, match="'cross_entropy weighted 1 2' has weights already"):
        losses.cross_entropy.weighted([1, 2]).weighted([1, 2])
    absolute = losses.Loss("absolute", off, off, off, "error")
    with pytest.raises(BadInput, match="'absolute' is not linear in its target"):
        absolute.weighted([1, 2])
    weighted = losses.cross_entropy.weighted([1, 2])
    with pytest.raises(BadInput, match="weights for 2 classes and the model 3 outputs"):
        weighted(Z, SOFT)
    with pytest.raises(BadInput, match="has 2 weights and arrays 3 classes; give one for each"):
        Federation(torch.nn.Linear(4, 3), arrays(), Supervised(), Training(2), loss=weighted)
    diabetes, model = data.diabetes(), models.mlp(10, 1)
    with pytest.raises(BadInput, match="weights of classes, and diabetes is a regression"):
        Federation(
            model, diabetes, Supervised(), Training(2), loss=losses.squared_error.weighted([2])
        )


@pytest.mark.parametrize("objective", [Supervised(), FedMix(0.1), NaiveMix(0.1)])
def test_weighted_losses_train_alike_on_both_engines(objective: Objective) -> None:
    weights = []
    for engine in ENGINES:
        torch.manual_seed(0)
        federation = Federation(
            torch.nn.Linear(4, 3), arrays(), objective, Training(2, batch_size=4, lr=0.1),
            loss=losses.cross_entropy.weighted(WEIGHTS), engine=engine,
        )  # fmt: skip
        list(federation.run(1))
        weights.append(federation.params["weight"])
    torch.testing.assert_close(*weights, rtol=1e-5, atol=1e-6)


def test_a_class_without_weight_is_not_learned() -> None:
    """Of a linear model, the gradient of its samples is 0: as if they were not there."""
    weighted, plain = losses.cross_entropy.weighted([1, 0, 1]), losses.cross_entropy
    z = Z.clone().requires_grad_()
    hard = torch.nn.functional.one_hot(HARD, 3).float()
    [slope] = torch.autograd.grad(weighted(z, hard).sum(), z)
    [kept] = torch.autograd.grad(plain(z, hard)[HARD != 1].sum(), z)
    torch.testing.assert_close(slope, kept)
