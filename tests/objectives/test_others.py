"""Supervised, Proximal, LocalMix, Hidden, sums and losses, each against a hand computation."""

import math
from typing import Any, Literal, cast

import pytest
import torch
from torch import nn

from fedmix import (
    BadInput,
    FedMix,
    GlobalMix,
    Hidden,
    LocalMix,
    NaiveMix,
    Objective,
    Proximal,
    Supervised,
    Training,
    losses,
)
from fedmix.core.rng import keep_mask
from fedmix.core.types import Batch, Params
from fedmix.models import Model
from fedmix.objectives import Needs, Phase, batch_mean
from fedmix.training.local_step import local_step
from tests.synthetic import model_and_batch


def tensor(*values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def scalar_model() -> tuple[Model, Params]:
    """f(x) = w·x with one weight, w = 2, under squared error."""
    model = Model(nn.Linear(1, 1, bias=False), losses.squared_error)
    return model, {"weight": tensor([2.0])}


def test_the_mean_of_a_batch_of_padding_is_zero() -> None:
    """A client that is done waits in its slot; 0/0 would be NaN, whose gradient spreads."""
    values, mask = torch.tensor([3.0, 5.0, 7.0]), torch.tensor([1.0, 1.0, 0.0])
    assert float(batch_mean(values, mask)) == 4.0
    assert float(batch_mean(values, 0 * mask)) == 0.0


def test_supervised_leaves_padding_out() -> None:
    """½·(2x)² − 2x·y for (x, y) = (1, 3), (2, 1) is −4 and 4; the mean is 0, whatever the padding
    holds.
    """
    model, params = scalar_model()
    batch = Batch(
        tensor([1.0], [2.0], [9.0]),
        tensor([3.0], [1.0], [7.0]),
        tensor(1.0, 1.0, 0.0),
        torch.tensor(0),
    )
    assert float(Supervised()(model, params, params, batch)) == 0.0


def test_squared_error_in_linear_form_has_the_same_gradient() -> None:
    z = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    y = torch.randn(4, 3, dtype=torch.float64)
    (ours,) = torch.autograd.grad(losses.squared_error.value(z, y).sum(), z)
    (textbook,) = torch.autograd.grad(((z - y) ** 2 / 2).sum(), z)
    torch.testing.assert_close(ours, textbook, rtol=0, atol=1e-14)


@pytest.mark.parametrize("loss", [losses.cross_entropy, losses.squared_error])
def test_losses_are_linear_in_the_target(loss: losses.Loss) -> None:
    z, a, b = (torch.randn(4, 3, dtype=torch.float64) for _ in range(3))
    mixed = loss.value(z, 0.3 * a + 0.7 * b)
    torch.testing.assert_close(
        mixed, 0.3 * loss.value(z, a) + 0.7 * loss.value(z, b), rtol=0, atol=1e-12
    )


def test_cross_entropy_by_hand() -> None:
    """Logits (0, ln 3) are probabilities (¼, ¾); against labels (½, ½): −½ ln ¼ − ½ ln ¾."""
    value = losses.cross_entropy.value(tensor([0.0, math.log(3)]), tensor([0.5, 0.5]))
    assert float(value) == pytest.approx(-0.5 * math.log(0.25) - 0.5 * math.log(0.75), abs=1e-12)


def test_proximal_by_hand_and_zero_at_the_anchor() -> None:
    model, params = scalar_model()
    batch = Batch(tensor([1.0]), tensor([1.0]), tensor(1.0), torch.tensor(0))
    assert float(Proximal(0.5)(model, params, {"weight": tensor([5.0])}, batch)) == 0.5 / 2 * 9
    w = {"weight": params["weight"].clone().requires_grad_()}
    at_anchor = Proximal(0.5)(model, w, params, batch)
    (gradient,) = torch.autograd.grad(at_anchor, w["weight"])
    assert float(at_anchor.detach()) == 0.0
    assert float(gradient) == 0.0


def test_mixup_by_hand() -> None:
    """λ = ¼, x̃ = ¾·1 + ¼·5 = 2, z = 4: ½·16 − 4·(¾·3 + ¼·7) = −8 + … = 8 − 16 = −8."""
    model, params = scalar_model()
    batch = Batch(
        tensor([1.0]),
        tensor([3.0]),
        tensor(1.0),
        torch.tensor(0),
        partner_x=tensor([5.0]),
        partner_y=tensor([7.0]),
        lam=tensor(0.25)[0],
    )
    for objective in (
        LocalMix(lam=0.25),
        GlobalMix(lam=0.25),
        LocalMix(alpha=1.0),
        GlobalMix(alpha=0.4),
    ):
        assert float(objective(model, params, params, batch)) == pytest.approx(-8.0, abs=1e-12)


def test_momentum_and_decay_follow_torch_sgd() -> None:
    """Five steps of ours against torch.optim.SGD on the same losses."""
    model, params, batch = model_and_batch("digits_cnn", 6)
    training = Training(1, lr=0.05, momentum=0.9, weight_decay=0.01)
    theirs = {n: p.clone().requires_grad_() for n, p in params.items()}
    optimiser = torch.optim.SGD(theirs.values(), lr=0.05, momentum=0.9, weight_decay=0.01)
    velocity = {n: torch.zeros_like(p) for n, p in params.items()}
    ours = params
    for _ in range(5):
        ours, velocity, _ = local_step(
            model, Supervised().phases(), training, ours, velocity, params, batch, 0.05
        )
        optimiser.zero_grad()
        torch.autograd.backward(
            -(batch.y * torch.log_softmax(model(theirs, batch.x, batch.key), -1)).sum(-1).mean()
        )
        optimiser.step()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name].detach(), rtol=1e-10, atol=1e-12)


def test_hidden_trains_the_decoder_then_everything() -> None:
    """By hand: a step of FedMix on the decoder alone with hidden states as inputs, then a plain
    step on all layers.
    """
    model, params, batch = model_and_batch("digits_cnn", 6)
    hidden_shape = model.head(2)(params, batch.x).shape[1:]
    mean = torch.randn(1, *hidden_shape, dtype=torch.float64)
    batch = batch._replace(mean_x=mean)
    training = Training(1, lr=0.1)
    ours, _, _ = local_step(
        model, Hidden(FedMix(0.2), layer=2).phases(), training, params, {}, params, batch, 0.1
    )

    encoder, decoder = model.head(2), model.tail(2)
    w = {n: p.clone().requires_grad_() for n, p in params.items()}
    h = encoder(w, batch.x, batch.key).detach()
    loss = FedMix(0.2)(decoder, w, params, batch._replace(x=h))
    for name, g in zip(
        decoder.names, torch.autograd.grad(loss, [w[n] for n in decoder.names]), strict=True
    ):
        w[name] = (w[name] - 0.1 * g).detach().requires_grad_()
    assert torch.equal(w["0.0.weight"], params["0.0.weight"])
    loss = -(batch.y * torch.log_softmax(model(w, batch.x, batch.key), -1)).sum(-1).mean()
    for name, g in zip(w, torch.autograd.grad(loss, list(w.values())), strict=True):
        torch.testing.assert_close(ours[name], (w[name] - 0.1 * g).detach(), rtol=1e-9, atol=1e-12)
    assert not torch.equal(ours["0.0.weight"], params["0.0.weight"])


def dropped_out() -> tuple[Model, Params, Batch, float]:
    """Dropout of one half between two layers that do nothing, and the loss of mixup with λ = ¼.

    It is the mean of ½z² − z·(¾·3 + ¼·7), where z is 2·(¾x + ¼x') if kept and 0 if not.
    """
    layers = nn.Linear(1, 1, bias=False), nn.Dropout(0.5), nn.Linear(1, 1, bias=False)
    model = Model(nn.Sequential(*layers), losses.squared_error)
    params, key = dict.fromkeys(model.names, torch.ones(1, 1)), torch.tensor(3)
    x, partners = torch.arange(1.0, 9)[:, None], torch.arange(12.0, 20)[:, None]
    ones = torch.ones(8, 1)
    kept = keep_mask(key, 0, (8, 1), 0.5)
    assert 0 < kept.sum() < 8
    z = 2 * (0.75 * x + 0.25 * partners) * kept
    batch = Batch(x, 3 * ones, ones[:, 0], key, partners, 7 * ones, partners, 7 * ones)
    return model, params, batch, float((z**2 / 2 - z * 4).mean())


@pytest.mark.parametrize("objective", [LocalMix(lam=0.25), NaiveMix(0.25, per="sample")], ids=str)
def test_mixed_samples_are_dropped_out(objective: Objective) -> None:
    model, params, batch, expected = dropped_out()
    assert float(objective(model, params, params, batch)) == pytest.approx(expected)


def test_samples_are_dropped_out() -> None:
    """The plain loss of mixed samples with the label 4 = ¾·3 + ¼·7."""
    model, params, batch, expected = dropped_out()
    assert batch.partner_x is not None
    mixed = batch._replace(x=0.75 * batch.x + 0.25 * batch.partner_x, y=torch.full((8, 1), 4.0))
    assert float(Supervised()(model, params, params, mixed)) == pytest.approx(expected)


@pytest.mark.parametrize("missing", ["mean_x", "mean_y"])
def test_a_batch_without_means_is_refused(missing: str) -> None:
    model, params, batch, _ = dropped_out()
    gone: Any = {missing: None}
    with pytest.raises(BadInput, match="this batch carries no received means; run a mean exchange"):
        NaiveMix(0.1)(model, params, params, batch._replace(**gone))


def test_hidden_states_of_samples_and_partners_are_dropped_out() -> None:
    """Hidden states are 2x where the batch's key keeps them, and 0 elsewhere."""
    model, params, batch, expected = dropped_out()
    found = Hidden(LocalMix(lam=0.25), 2)(model, params, params, batch)
    assert float(found) == pytest.approx(expected)


def test_a_sum_joins_every_phase() -> None:
    both = Hidden(NaiveMix(0.1), 2) + Proximal(0.3)
    first, second = both.phases()
    assert (first.layer, second.layer) == (2, 0)
    model, params, batch = model_and_batch("digits_cnn", 3)
    away = {n: p + 1 for n, p in params.items()}
    count = sum(p.numel() for p in params.values())
    plain = float(Supervised()(model, params, away, batch))
    assert float(second.objective(model, params, away, batch)) == pytest.approx(
        plain + 0.15 * count, rel=1e-12
    )
    before, after = Hidden(NaiveMix(0.1), 2).phases()
    assert (Proximal(0.3) + Hidden(NaiveMix(0.1), 2)).phases() == (
        Phase(Proximal(0.3) + before.objective, 2),
        Phase(Proximal(0.3) + after.objective),
    )
    assert (Supervised() + Proximal(0.1)).phases() == (Phase(Supervised() + Proximal(0.1)),)


@pytest.mark.parametrize("per", ["batch", "sample"])
def test_means_for_each_batch_or_each_sample(per: Literal["batch", "sample"]) -> None:
    for objective in (FedMix(0.1, per=per), NaiveMix(0.1, per=per)):
        assert objective.needs == Needs(means=per)


class Late(Supervised):
    """One phase that leaves the first two layers alone."""

    def phases(self) -> tuple[Phase, ...]:
        return (Phase(self, 2),)


def test_a_sum_trains_no_layer_that_one_of_its_terms_leaves_alone() -> None:
    for both in (Late() + Proximal(0.1), Proximal(0.1) + Late()):
        assert both.phases() == (Phase(both, 2),)


def test_every_term_knows_where_the_round_began() -> None:
    """2 is 3 from 5: ½·0.5·9 for each Proximal, and 2²/2 − 2·1 = 0 for the sample (1, 1)."""
    model, params = scalar_model()
    batch = Batch(tensor([1.0]), tensor([1.0]), tensor(1.0), torch.tensor(0))
    anchor = {"weight": tensor([5.0])}
    for both in (Proximal(0.5) + Supervised(), Supervised() + Proximal(0.5)):
        assert float(both(model, params, anchor, batch)) == 2.25
    assert float(Proximal(0.0)(model, params, anchor, batch)) == 0.0
    cut = Model(nn.Sequential(nn.Identity(), nn.Linear(1, 1, bias=False)), losses.squared_error)
    hidden, weights = Hidden(Proximal(0.5), 1), {"1.weight": params["weight"]}
    assert float(hidden(cut, weights, {"1.weight": anchor["weight"]}, batch)) == 2.25


@pytest.mark.parametrize("missing", ["partner_x", "partner_y", "lam"])
def test_a_batch_without_partners_is_refused(missing: str) -> None:
    model, params, batch, _ = dropped_out()
    gone: Any = {missing: None}
    batch = batch._replace(lam=torch.tensor(0.5))._replace(**gone)
    with pytest.raises(BadInput, match="LocalMix: this batch carries no partners to mix with"):
        LocalMix(alpha=1.0)(model, params, params, batch)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: FedMix(lam=1.5), r"FedMix: lam=1\.5 is outside \[0, 1\]"),
        (lambda: FedMix(lam=float("nan")), r"FedMix: lam=nan is outside"),
        (lambda: NaiveMix(lam=-0.1), r"NaiveMix: lam=-0\.1 is outside \[0, 1\]"),
        (lambda: LocalMix(lam=2.0), r"LocalMix: lam=2\.0 is outside"),
        (lambda: LocalMix(), "LocalMix: give either alpha .* or a fixed lam$"),
        (lambda: GlobalMix(alpha=1.0, lam=0.1), "GlobalMix: give .* takes the drawn one away"),
        (lambda: Needs(means=cast(Any, "all")), "Needs: means='all' is unknown; .* batch, sample$"),
        (lambda: Needs(partner=cast(Any, "x")), "Needs: partner='x' is unknown; .* local, global$"),
        (lambda: GlobalMix(alpha=0.0), "alpha=0.0 must be positive"),
        (lambda: Proximal(-1.0), "mu=-1.0 is negative"),
        (lambda: FedMix(0.1, scale="algorithm", expand="logits"), "leave scale out"),
        (lambda: Hidden(FedMix(0.1), 0), "layer=0; hidden states exist after layer 1"),
        (lambda: Hidden(Hidden(FedMix(0.1), 1), 2), "do not nest"),
        (lambda: Hidden(FedMix(0.1), 1) + Hidden(FedMix(0.1), 2), "several phases"),
        (lambda: Hidden(FedMix(0.1), 1) + NaiveMix(0.1), "one mixes at layer 1, the other at 0"),
        (
            lambda: FedMix(0.1) + NaiveMix(0.1, per="sample"),
            "one needs means='batch', the other 'sample'",
        ),
    ],
)
def test_bad_objectives(make: object, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        make()  # type: ignore[operator]
