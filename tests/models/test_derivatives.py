"""FedMix's gradients for modules of anyone's own: right, or refused.

PyTorch's second derivatives are wrong for some.
"""

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad
from torch.nn import functional as F

from fedmix import BadInput, Federation, FedMix, Hidden, NaiveMix, Objective, Supervised, Training
from fedmix.core.types import Batch
from fedmix.models import Model
from tests.models.test_own_modules import engines_agree
from tests.synthetic import arrays


class Between(nn.Module):
    """Two layers of which the values between go through any function of (module, values), shaped
    (B, 2, 4).
    """

    def __init__(
        self, function: Callable[["Between", Tensor], Tensor], part: nn.Module | None = None
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.part, self.function = (
            nn.Linear(4, 8),
            nn.Linear(8, 3),
            part,
            function,
        )

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.function(self, self.first(x).view(-1, 2, 4))
        out: Tensor = self.last(hidden.flatten(1))
        return out


class Channelwise(nn.LayerNorm):
    """As torchvision's LayerNorm2d: over channels, by a forward of its own."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.layer_norm(x.transpose(1, 2), self.normalized_shape, self.weight, self.bias, self.eps)
        return x.transpose(1, 2)


def difference(model: Model, batch: Batch, lam: float, name: str, along: Tensor) -> float:
    """By finite differences alone, in float64: how FedMix's formula changes as a parameter moves
    along a direction.

    ℓ3 needs the derivative of the loss along x̄, which is a finite difference too.
    """

    def value(step: float) -> Tensor:
        params = model.init()
        params[name] = params[name] + step * along
        x = (1 - lam) * batch.x
        assert batch.mean_x is not None
        assert batch.mean_y is not None

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(model(params, x, batch.key), y.expand(len(x), -1))

        there, back = (loss(x + h * batch.mean_x, batch.y) for h in (1e-4, -1e-4))
        mixed = (1 - lam) * loss(x, batch.y) + lam * loss(x, batch.mean_y)
        return mixed + lam * (there - back) / 2e-4

    return float(value(1e-4) - value(-1e-4)) / 2e-4


def right_for(module: nn.Module) -> None:
    """FedMix's gradient of the first layer is that of finite differences."""
    model = Model(module.double())
    g = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=g, dtype=torch.float64)

    labels = [normal(n, 3).softmax(1) for n in (5, 1)]
    batch = Batch(
        normal(5, 4), labels[0], torch.ones(5).double(), torch.tensor(1), normal(1, 4), labels[1]
    )
    gradient = grad(lambda p: FedMix(0.3)(model, p, p, batch))(model.init())["first.weight"]
    along = normal(8, 4)
    expected = difference(model, batch, 0.3, "first.weight", along)
    assert float((gradient * along).sum()) == pytest.approx(expected, rel=1e-5)


NORMS: dict[str, Callable[[], Between]] = {
    "F.layer_norm": lambda: Between(lambda _, h: F.layer_norm(h, (4,))),
    "torch.layer_norm": lambda: Between(lambda _, h: torch.layer_norm(h, (4,))),
    "subclass of LayerNorm": lambda: Between(lambda m, h: m.part(h), Channelwise(2, eps=0.1)),  # type: ignore[misc]
    "F.instance_norm": lambda: Between(lambda _, h: F.instance_norm(h, eps=0.1)),
    "InstanceNorm1d": lambda: Between(lambda m, h: m.part(h), nn.InstanceNorm1d(2, affine=True)),  # type: ignore[misc]
    "F.group_norm": lambda: Between(lambda _, h: F.group_norm(h, 2)),
    "RMSNorm": lambda: Between(lambda m, h: m.part(h), nn.RMSNorm(4)),  # type: ignore[misc]
}


@pytest.mark.parametrize("build", NORMS.values(), ids=NORMS)
def test_gradients_through_any_normalisation_are_right(build: Callable[[], Between]) -> None:
    right_for(build())
    engines_agree(build(), rtol=1e-4, atol=1e-5)


WRONG: dict[str, Callable[[Between, Tensor], Tensor]] = {
    "native_layer_norm": lambda _, h: torch.native_layer_norm(h, (4,), None, None, 1e-5)[0],
    "det": lambda _, h: torch.linalg.det(h @ h.mT + h[:, :, :2])[:, None, None] * h,
}


@pytest.mark.parametrize("function", WRONG.values(), ids=WRONG)
def test_a_model_of_which_the_gradient_would_be_wrong_is_refused(
    function: Callable[[Between, Tensor], Tensor],
) -> None:
    with pytest.raises(BadInput, match=r"by gradients that are \d+% off: .* or use NaiveMix"):
        Federation(Between(function), arrays(), FedMix(0.1), Training(2))
    for objective in (NaiveMix(0.1), Supervised()):  # which differentiate once
        Federation(Between(function), arrays(), objective, Training(2))


class Stopped(nn.Linear):
    """No gradient gets past its outputs."""

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        if out.requires_grad:
            out.register_hook(lambda g: 0 * g)  # type: ignore[no-untyped-call]
        return out


def test_a_gradient_that_should_be_zero_is_wrong_too() -> None:
    """FedMix does not run hooks that a forward puts on tensors; others do."""
    with pytest.raises(BadInput, match=r"that are 100% off: .*, or leaves out a hook"):
        Federation(Stopped(4, 3), arrays(), FedMix(0.1), Training(2))
    federation = Federation(Stopped(4, 3), arrays(), NaiveMix(0.1), Training(2))
    before = federation.params["weight"]
    list(federation.run(1))
    assert torch.equal(federation.params["weight"], before)


def test_the_same_between_layers() -> None:
    module = nn.Sequential(nn.Linear(4, 8), Between(WRONG["native_layer_norm"]))
    module[1].first = nn.Linear(8, 8)
    with pytest.raises(BadInput, match="by gradients that are"):
        Federation(module, arrays(), Hidden(FedMix(0.1), layer=1), Training(2))


def straight_through(_: Between, hidden: Tensor) -> Tensor:
    """Rounded, with the gradient of what was rounded, on purpose."""
    return hidden + (hidden.round() - hidden).detach()


def nothing(_: Between, hidden: Tensor) -> Tensor:
    """The mean of what has mean 0: its derivative is rounding alone."""
    return F.layer_norm(hidden, (4,)).mean(-1, keepdim=True).expand_as(hidden)


OWN: list[Callable[[Between, Tensor], Tensor]] = [
    straight_through,
    nothing,
    lambda _, h: h * h.detach(),
    lambda _, h: h.relu(),
]


@pytest.mark.parametrize("function", OWN)
def test_derivatives_of_ones_own_kinks_and_rounding_pass(
    function: Callable[[Between, Tensor], Tensor],
) -> None:
    Federation(Between(function), arrays(), FedMix(0.1), Training(2))


@pytest.mark.parametrize("kind", [nn.LeakyReLU, nn.ELU, nn.Hardtanh, nn.SiLU])
def test_activations_in_place_train_as_others_do(kind: Any) -> None:
    trained = []
    for in_place in (False, True):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), kind(inplace=in_place), nn.Linear(8, 3))
        federation = Federation(net, arrays(), FedMix(0.3), Training(2))
        assert [done.round for done in federation.run(2)] == [1, 2]
        trained.append(federation.params)
    for name, weights in trained[0].items():
        assert torch.allclose(weights, trained[1][name], atol=1e-6)


# What a call of the module would run


class Doubled(nn.ReLU):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x) + x


class Outright(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * torch.where(x > 0, x, 0) + x


def doubled(_: nn.ReLU, x: Tensor) -> Tensor:
    return 2 * x.relu() + x


def replaced() -> nn.Module:
    relu = nn.ReLU()
    relu.forward = types.MethodType(doubled, relu)  # type: ignore[method-assign]
    return relu


def hooked() -> nn.Module:
    relu = nn.ReLU()
    relu.register_forward_hook(lambda _, args, out: 2 * out + args[0])
    return relu


@pytest.mark.parametrize("build", [Doubled, replaced, hooked])
@pytest.mark.parametrize("objective", [FedMix(0.1), NaiveMix(0.1), Supervised()], ids=str)
def test_a_layer_with_another_forward_trains_as_that(
    build: Callable[[], nn.Module], objective: Objective
) -> None:
    """The same weights as with a function that says it outright: 2·relu(h) + h."""
    runs = []
    for layer in (build(), Outright()):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, 8), layer, nn.Linear(8, 3))
        federation = Federation(module, arrays(), objective, Training(2, batch_size=4, lr=0.1))
        list(federation.run(2))
        runs.append(federation.params)
    for name, p in runs[1].items():
        torch.testing.assert_close(runs[0][name], p)


def test_a_sequential_with_another_forward_trains_as_that() -> None:
    """And cannot be cut."""
    module = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3))
    module.forward = types.MethodType(lambda s, x: s[1](s[0](x).tanh()), module)  # type: ignore[method-assign]
    model = Model(module)
    x, params = torch.randn(5, 4), model.init()
    value, _ = model.along(params, x, torch.randn(1, 4), torch.tensor(0))
    hidden = torch.tanh(x @ params["0.weight"].T + params["0.bias"])
    torch.testing.assert_close(value, hidden @ params["1.weight"].T + params["1.bias"])
    with pytest.raises(BadInput, match="cannot start from layer 1"):
        model.tail(1)


class Always(nn.Dropout):
    """Drops in evaluation too."""

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.p, training=True)


class Never(nn.Dropout):
    def forward(self, x: Tensor) -> Tensor:
        return 3 * x


def test_a_dropout_with_another_forward_is_not_taken_for_dropout() -> None:
    with pytest.raises(BadInput, match="draws random numbers by itself"):
        Federation(nn.Sequential(nn.Linear(4, 3), Always(0.5)), arrays(), Supervised(), Training(2))
    model = Model(nn.Sequential(nn.Identity(), Never(0.5)))
    assert model({}, torch.ones(2, 3), torch.tensor(0)).tolist() == [[3.0] * 3] * 2


def test_a_hook_of_a_dropout_layer_runs() -> None:
    drop = nn.Dropout(0.5)
    drop.register_forward_hook(lambda _, __, out: 10 * out)
    model = Model(nn.Sequential(nn.Identity(), drop))
    assert set(model({}, torch.ones(9, 9), torch.tensor(0)).flatten().tolist()) == {0.0, 20.0}


# What a copy would not follow


def wrapped(self: Any) -> None:
    """The usual way to change a layer in a notebook; `old` is a method of the original layer."""
    old = self.first.forward
    self.first.forward = lambda x: 2 * old(x)


def by_a_lambda(self: Any) -> None:
    self.function = lambda _, h: self.first.weight.sum() * h


@pytest.mark.parametrize("change", [wrapped, by_a_lambda])
@pytest.mark.parametrize("objective", [FedMix(0.1), Supervised()], ids=str)
def test_functions_that_hold_the_original_are_refused(
    change: Callable[[Any], None], objective: Objective
) -> None:
    """A copy would call the original layer, with weights that never change."""
    module = Between(lambda _, h: h.tanh())
    change(module)
    with pytest.raises(
        BadInput, match=r"the model cannot be copied: .*; write it as a method of its class"
    ):
        Federation(module, arrays(), objective, Training(2))
    assert module.training


HOOKS: dict[str, Callable[[Any], object]] = {
    "parameter": lambda layer: layer.weight.register_hook(lambda g: 0 * g),
    "accumulated": lambda layer: layer.bias.register_post_accumulate_grad_hook(lambda _: None),
    "module": lambda layer: layer.register_full_backward_hook(lambda *_: None),
    "before": lambda layer: layer.register_full_backward_pre_hook(lambda *_: None),
}


@pytest.mark.parametrize("add", HOOKS.values(), ids=HOOKS)
def test_hooks_on_gradients_are_refused(add: Callable[[Any], object]) -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3))
    add(module[2])
    with pytest.raises(
        BadInput,
        match=r"layer '2' \(Linear\) has a hook on its gradients, which would never run; take it "
        r"off",
    ):
        Federation(module, arrays(), Supervised(), Training(2))


def test_a_layer_that_is_there_twice_keeps_its_first_weights() -> None:
    module = Between(lambda m, h: m.part(h), nn.Linear(4, 4))  # type: ignore[misc]
    module.add_module("again", module.part)
    model = Model(module)
    before = model.init()
    model({n: p + 1 for n, p in before.items()}, torch.ones(2, 4), torch.tensor(0))
    for name, p in model.init().items():
        assert torch.equal(p, before[name]), name
