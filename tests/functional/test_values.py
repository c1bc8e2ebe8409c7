"""Values and gradients against the textbook's double backward and finite differences."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedmix import FedMix, LocalMix, NaiveMix, Proximal
from fedmix.core import types
from fedmix.functional import fedmix_loss, localmix_loss, naivemix_loss, prox
from fedmix.functional import slope as slopes
from fedmix.models import Model
from fedmix.models.differentiable import Differentiable
from tests.functional.textbook import CLASSES, FLAT, KINDS, TEXT, Batch, LastStep, fedmix, made

LAM = 0.3
EXPAND = ("loss", "logits")


def ways(net: nn.Module) -> list[str]:
    return list(slopes._ways[net].values())


def gradients(value: Tensor, net: nn.Module) -> list[Tensor]:
    return list(torch.autograd.grad(value, list(net.parameters()), materialize_grads=True))


@pytest.mark.parametrize("means", [1, 6])
@pytest.mark.parametrize("expand", EXPAND)
@pytest.mark.parametrize("kind", KINDS)
def test_double_backward_gives_the_same(kind: str, expand: str, means: int) -> None:
    net, batch = made(kind), Batch(KINDS[kind][1], means)
    other = copy.deepcopy(net)
    for seed in (5, 6):  # the first call looks for a way, the second one knows it
        torch.manual_seed(seed)
        expected = fedmix(other, batch, LAM, expand)
        torch.manual_seed(seed)
        ours = fedmix_loss(net, *batch.tensors(), LAM, expand=expand)  # type: ignore[arg-type]
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-11)
        for mine, theirs in zip(gradients(ours, net), gradients(expected, other), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-11)
        for mine, theirs in zip(net.buffers(), other.buffers(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)
    assert ways(net) == [KINDS[kind][2]]


@pytest.mark.parametrize("kind", ["cnn", "layer norm", "transformer", "gru", "own function"])
def test_finite_differences_give_the_same(kind: str) -> None:
    """ℓ3 = λ·dℓ(x' + h·x̄)/dh, and its change along a direction of the weights."""
    net, batch, step = made(kind).eval(), Batch(KINDS[kind][1]), 1e-4
    y = F.one_hot(batch.y, CLASSES).double()

    def loss() -> Tensor:
        x = (1 - LAM) * batch.x
        log_p, there, back = (net(x + h * batch.mean_x).log_softmax(1) for h in (0.0, step, -step))
        own, slope = -(y * log_p).sum(1), -(y * (there - back)).sum(1) / (2 * step)
        other = -(batch.mean_y * log_p).sum(1)
        value: Tensor = ((1 - LAM) * own + LAM * other + LAM * slope).mean()
        return value

    ours = fedmix_loss(net, *batch.tensors(), LAM)
    torch.testing.assert_close(ours, loss(), rtol=1e-6, atol=1e-7)
    mine = torch.cat([g.flatten() for g in gradients(ours, net)])
    direction = torch.randn(len(mine), generator=torch.Generator().manual_seed(2)).double()
    weights = nn.utils.parameters_to_vector(net.parameters())
    ends = []
    for sign in (1, -1):
        nn.utils.vector_to_parameters(weights + sign * step * direction, net.parameters())
        with torch.no_grad():
            ends.append(float(loss()))
    expected = (ends[0] - ends[1]) / (2 * step)
    assert float(mine @ direction) == pytest.approx(expected, rel=2e-4, abs=1e-5)


@pytest.mark.parametrize("expand", EXPAND)
def test_an_lstm_in_float32_has_no_forward_mode(expand: str) -> None:
    torch.manual_seed(0)
    net, batch = LastStep(), Batch(TEXT)
    x, y, mean_x, mean_y = batch.tensors()
    ours = fedmix_loss(net, x.float(), y, mean_x, mean_y, LAM, expand=expand)  # type: ignore[arg-type]
    exact = copy.deepcopy(net).double()
    expected = fedmix(exact, batch, LAM, expand)
    torch.testing.assert_close(ours.double(), expected, rtol=1e-6, atol=1e-6)
    for mine, theirs in zip(gradients(ours, net), gradients(expected, exact), strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=1e-6)
    if torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        assert ways(net) == [slopes.DOUBLE]


def test_a_wrong_second_derivative_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's own layer norm in forward mode is wrong; the trial then takes double backward."""
    monkeypatch.setattr(Differentiable, "right", {})
    net, batch = made("layer norm"), Batch(FLAT)
    ours = fedmix_loss(net, *batch.tensors(), LAM)
    assert ways(net) == [slopes.DOUBLE]
    expected = fedmix(net, batch, LAM, "loss")
    for mine, theirs in zip(gradients(ours, net), gradients(expected, net), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("scale", ["proposition", "algorithm"])
def test_functions_and_objectives_give_the_same(scale: str) -> None:
    net, batch = made("mlp"), Batch(FLAT)
    model = Model(net)
    params = {name: p.detach().requires_grad_() for name, p in net.named_parameters()}
    anchor = {name: p.detach() + 0.1 for name, p in net.named_parameters()}
    fields = types.Batch(
        batch.x, F.one_hot(batch.y, CLASSES).double(), torch.ones(6).double(), torch.tensor(1),
        batch.mean_x, batch.mean_y, batch.x.flip(0), F.one_hot(batch.y.flip(0), CLASSES).double(),
    )  # fmt: skip
    pairs = (
        (
            fedmix_loss(net, *batch.tensors(), LAM, scale=scale),  # type: ignore[arg-type]
            FedMix(LAM, scale),  # type: ignore[arg-type]
        ),
        (naivemix_loss(net, *batch.tensors(), LAM), NaiveMix(LAM)),
        (
            localmix_loss(net, batch.x, batch.y, batch.x.flip(0), batch.y.flip(0), lam=LAM),
            LocalMix(lam=LAM),
        ),
        (prox(net, anchor, 0.2), Proximal(0.2)),
    )
    for function, objective in pairs:
        of_params = objective(model, params, anchor, fields)
        torch.testing.assert_close(function, of_params, rtol=1e-12, atol=1e-12)
        theirs = torch.autograd.grad(of_params, list(params.values()), materialize_grads=True)
        for a, b in zip(gradients(function, net), theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_mixup_by_hand() -> None:
    """With the identity as weights, the logits are the mixed inputs themselves."""
    net = nn.Linear(2, 2, bias=False)
    nn.init.eye_(net.weight)
    x, y = torch.tensor([[2.0, 0.0]]), torch.tensor([0])
    other, shares = torch.tensor([[0.0, 4.0]]), torch.tensor([[0.5, 0.5]])
    z = torch.tensor([0.75 * 2, 0.25 * 4])
    log_p = z - z.exp().sum().log()
    naive = -(0.75 * log_p[0] + 0.25 * (log_p[0] + log_p[1]) / 2)
    torch.testing.assert_close(naivemix_loss(net, x, y, other, shares, 0.25), naive)
    torch.manual_seed(3)
    drawn = naivemix_loss(net, x, y, other, shares, alpha=0.5)
    torch.manual_seed(3)
    lam = torch.distributions.Beta(0.5, 0.5).sample()
    z = torch.stack([(1 - lam) * 2, lam * 4])
    log_q = z - z.exp().sum().log()
    torch.testing.assert_close(drawn, -((1 - lam) * log_q[0] + lam * log_q.sum() / 2))
    local = -(0.75 * log_p[0] + 0.25 * log_p[1])
    torch.testing.assert_close(localmix_loss(net, x, y, other, torch.tensor([1]), lam=0.25), local)


def test_a_shuffled_batch_is_the_partner() -> None:
    net, batch = made("mlp"), Batch(FLAT)
    torch.manual_seed(3)
    ours = localmix_loss(net, batch.x, batch.y, alpha=0.5)
    torch.manual_seed(3)
    order = torch.randperm(6)
    lam = float(torch.distributions.Beta(0.5, 0.5).sample())
    expected = localmix_loss(net, batch.x, batch.y, batch.x[order], batch.y[order], lam=lam)
    torch.testing.assert_close(ours, expected)


def test_squared_error_by_hand() -> None:
    """f(x) = 2x at x' = 0.75·4 = 3, x̄ = 2, y = 1, ȳ = 5: ½z² − zy with z = 6, slope z − y times 4.

    ℓ1 + ℓ2 + ℓ3 = 0.75·(18 − 6) + 0.25·(18 − 30) + 0.25·(6 − 1)·4 = 9 − 3 + 5 = 11.
    """
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, 2.0)
    four, one = torch.tensor([[4.0]]), torch.tensor([1.0])
    means = torch.tensor([[2.0]]), torch.tensor([[5.0]])
    ours = fedmix_loss(net, four, one, *means, 0.25, loss="squared_error")
    assert float(ours.detach()) == pytest.approx(11.0)


def test_a_loss_of_ones_own() -> None:
    net, batch = made("cnn"), Batch(KINDS["cnn"][1])
    theirs = nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1)
    ours = fedmix_loss(net, *batch.tensors(), LAM, loss=theirs)
    x = ((1 - LAM) * batch.x).requires_grad_()
    z, y = net(x), F.one_hot(batch.y, CLASSES).double()
    own = theirs(z, y).mean()
    (slope,) = torch.autograd.grad(own, x, create_graph=True)
    other = theirs(z, batch.mean_y.expand_as(y)).mean()
    expected = (1 - LAM) * own + LAM * other + LAM * (slope * batch.mean_x).sum()
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-11)
    for a, b in zip(gradients(ours, net), gradients(expected, net), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-11)
