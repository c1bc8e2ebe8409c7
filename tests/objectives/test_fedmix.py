"""FedMix against textbooks: double backward, finite differences, linearity, and the order of its
error.
"""

from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from fedmix import BadInput, FedMix, GlobalMix, NaiveMix, models
from fedmix.core.types import Batch, Params
from fedmix.models import Model
from tests.synthetic import model_and_batch

KINDS = ["digits_cnn", "vgg", "charlstm"]
NONE: Params = {}


def grad(value: Tensor, params: Params) -> Params:
    return dict(zip(params, torch.autograd.grad(value, list(params.values())), strict=True))


def double_backward(model: Model, params: Params, batch: Batch, lam: float, scale: str) -> Tensor:
    """ℓ1 + ℓ2 + ℓ3 as written in Algorithm 2, with ∂ℓ/∂x by reverse mode and a sum over all
    elements.

    With L1 a mean over the batch, ∂L1/∂x_i already carries 1/B, so ℓ3 is the plain sum Σ_i ∂L1/∂x_i
    · x_g.
    """
    assert batch.mean_x is not None
    assert batch.mean_y is not None
    x = ((1 - lam) * batch.x).requires_grad_()
    log_p = torch.log_softmax(model(params, x, batch.key), -1)
    own = -(batch.y * log_p).sum(-1).mean()
    other = -(batch.mean_y * log_p).sum(-1).mean()
    (slope,) = torch.autograd.grad(own, x, create_graph=True)
    weight = lam if scale == "proposition" else lam * (1 - lam)
    return (1 - lam) * own + lam * other + weight * (slope * batch.mean_x).sum()


@pytest.mark.parametrize("per", [1, "B"])
@pytest.mark.parametrize("scale", ["proposition", "algorithm"])
@pytest.mark.parametrize("B", [1, 10, 32])
@pytest.mark.parametrize("kind", KINDS)
def test_gradient_equals_double_backward(
    kind: str, B: int, scale: Literal["proposition", "algorithm"], per: int | str
) -> None:
    model, params, batch = model_and_batch(kind, B, means=1 if per == 1 else B)
    params = {n: p.requires_grad_() for n, p in params.items()}
    ours = FedMix(lam=0.2, scale=scale)(model, params, NONE, batch)
    textbook = double_backward(model, params, batch, 0.2, scale)
    torch.testing.assert_close(ours, textbook, rtol=1e-6, atol=1e-9)
    expected = grad(textbook, params)
    for name, g in grad(ours, params).items():
        torch.testing.assert_close(g, expected[name], rtol=1e-6, atol=1e-9)


def test_the_third_term_times_something() -> None:
    """At 0 the loss is ℓ1 + ℓ2, or the logits are those at (1−λ)x; between, the loss is linear in
    `third`.
    """
    model, params, batch = model_and_batch("digits_cnn", 5)
    assert batch.mean_y is not None

    def value(**how: Any) -> Tensor:
        return FedMix(0.2, **how)(model, params, NONE, batch)

    log_p = torch.log_softmax(model(params, 0.8 * batch.x, batch.key), -1)
    without = -((0.8 * batch.y + 0.2 * batch.mean_y) * log_p).sum(-1).mean()
    torch.testing.assert_close(value(third=0.0), without)
    torch.testing.assert_close(value(third=0.0, expand="logits"), without)
    torch.testing.assert_close(value(third=0.1), without + 0.1 * (value() - without))
    assert float((value(third=0.1, expand="logits") - without).abs()) > 0
    with pytest.raises(BadInput, match="third=-1 multiplies ℓ3; it must be 0 or more"):
        FedMix(0.2, third=-1)
    with pytest.raises(BadInput, match="third=inf multiplies ℓ3"):
        FedMix(0.2, third=float("inf"))


@pytest.mark.parametrize("B", [1, 10, 32])
@pytest.mark.parametrize("kind", KINDS)
def test_third_term_is_a_finite_difference(kind: str, B: int) -> None:
    """ℓ3 = λ·d/dh mean_i ℓ(f(x' + h·x_g), y_i) at h = 0; what is left of FedMix without ℓ1 and ℓ2
    must be that.
    """
    model, params, batch = model_and_batch(kind, B)
    assert batch.mean_x is not None
    lam, h = 0.2, 1e-6
    x = (1 - lam) * batch.x

    def mean_loss(x: Tensor, y: Tensor) -> Tensor:
        return -(y * torch.log_softmax(model(params, x, batch.key), -1)).sum(-1).mean()

    difference = (
        mean_loss(x + h * batch.mean_x, batch.y) - mean_loss(x - h * batch.mean_x, batch.y)
    ) / (2 * h)
    assert batch.mean_y is not None
    first_two = (1 - lam) * mean_loss(x, batch.y) + lam * mean_loss(x, batch.mean_y)
    for scale, weight in (("proposition", lam), ("algorithm", lam * (1 - lam))):
        third = FedMix(lam, scale=scale)(model, params, NONE, batch) - first_two  # type: ignore[arg-type]
        torch.testing.assert_close(third, weight * difference, rtol=1e-6, atol=1e-8)
    assert abs(difference) > 1e-3  # the term is there at all


@pytest.mark.parametrize("kind", KINDS)
def test_linear_in_the_mean(kind: str) -> None:
    """The paper's section 3.3: the mean over j of the loss with sample j is the loss with the mean
    of the samples.
    """
    model, params, batch = model_and_batch(kind, 10, means=7)
    assert batch.mean_x is not None
    assert batch.mean_y is not None
    objective = FedMix(lam=0.15)
    singles = [
        objective(
            model,
            params,
            NONE,
            batch._replace(mean_x=batch.mean_x[j : j + 1], mean_y=batch.mean_y[j : j + 1]),
        )
        for j in range(7)
    ]
    mean = batch._replace(
        mean_x=batch.mean_x.mean(0, keepdim=True), mean_y=batch.mean_y.mean(0, keepdim=True)
    )
    torch.testing.assert_close(
        torch.stack(singles).mean(), objective(model, params, NONE, mean), rtol=0, atol=1e-10
    )


def smooth() -> tuple[Model, Params, Batch]:
    model = Model(models.initialised(lambda: models.mlp(12, 5), 3))
    params = {n: p.double() for n, p in model.init().items()}
    g = torch.Generator().manual_seed(5)
    others = torch.randn(6, 12, generator=g, dtype=torch.float64)
    labels = torch.eye(5, dtype=torch.float64)
    batch = Batch(
        x=torch.randn(10, 12, generator=g, dtype=torch.float64),
        y=labels[torch.randint(5, (10,), generator=g)],
        mask=torch.ones(10, dtype=torch.float64),
        key=torch.tensor(0),
        partner_x=others,
        partner_y=labels[torch.randint(5, (6,), generator=g)],
    )
    return model, params, batch


def test_error_falls_with_the_square_of_lambda() -> None:
    """Proposition 1: against global mixup with the same samples and fixed λ, the error is O(λ²), in
    both expansions.
    """
    model, params, batch = smooth()
    others, labels = batch.partner_x, batch.partner_y
    assert others is not None
    assert labels is not None

    def global_mixup(lam: float) -> Tensor:
        each = []
        for j in range(6):
            with_j = batch._replace(
                partner_x=others[j].expand(10, 12), partner_y=labels[j].expand(10, 5)
            )
            each.append(GlobalMix(lam=lam)(model, params, NONE, with_j))
        return torch.stack(each).mean()

    means = batch._replace(mean_x=others.mean(0, keepdim=True), mean_y=labels.mean(0, keepdim=True))

    def fedmix(lam: float, expand: Literal["loss", "logits"]) -> Tensor:
        return FedMix(lam, expand=expand)(model, params, NONE, means)

    gaps: dict[str, Callable[[float], Tensor]] = {
        "loss": lambda lam: fedmix(lam, "loss") - global_mixup(lam),
        "logits": lambda lam: fedmix(lam, "logits") - global_mixup(lam),
        "between": lambda lam: fedmix(lam, "logits") - fedmix(lam, "loss"),
    }
    for name, gap in gaps.items():
        for lam in (0.004, 0.002, 0.001):
            ratio = float(gap(lam) / gap(lam / 2))
            assert 3.6 < ratio < 4.4, (name, lam, ratio)


def test_naivemix_on_single_samples_is_global_mixup() -> None:
    model, params, batch = smooth()
    assert batch.partner_x is not None
    assert batch.partner_y is not None
    mean = batch._replace(mean_x=batch.partner_x[2:3], mean_y=batch.partner_y[2:3])
    partner = batch._replace(
        partner_x=batch.partner_x[2].expand(10, 12), partner_y=batch.partner_y[2].expand(10, 5)
    )
    for lam in (0.0, 0.1, 0.7, 1.0):
        ours, theirs = (
            NaiveMix(lam)(model, params, NONE, mean),
            GlobalMix(lam=lam)(model, params, NONE, partner),
        )
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14)


def test_logits_form_is_exact_for_a_linear_model() -> None:
    """For f(x) = Wx the expansion is the function itself, so the logits form is NaiveMix, to
    rounding.
    """
    model = Model(torch.nn.Linear(12, 5, bias=False))
    _, _, batch = smooth()
    params = {n: p.double() for n, p in model.init().items()}
    assert batch.partner_x is not None
    assert batch.partner_y is not None
    batch = batch._replace(mean_x=batch.partner_x[:1], mean_y=batch.partner_y[:1])
    ours = FedMix(0.3, expand="logits")(model, params, NONE, batch)
    torch.testing.assert_close(ours, NaiveMix(0.3)(model, params, NONE, batch), rtol=0, atol=1e-12)


@pytest.mark.parametrize("expand", ["loss", "logits"])
def test_lambda_zero_is_the_plain_loss(expand: Literal["loss", "logits"]) -> None:
    model, params, batch = model_and_batch("digits_cnn", 10)
    plain = -(batch.y * torch.log_softmax(model(params, batch.x, batch.key), -1)).sum(-1).mean()
    torch.testing.assert_close(
        FedMix(0.0, expand=expand)(model, params, NONE, batch), plain, rtol=0, atol=1e-14
    )
