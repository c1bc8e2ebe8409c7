"""A value and its derivative in one pass, by every rule; and which layers are replaced."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp

from fedmix import models
from fedmix.models import LSTM, KeyedDropout, Model, along
from fedmix.models.along import Along
from fedmix.models.functional import _prepared
from fedmix.models.layers import Conv2d, Embedding, LastStep, Linear, MaxPool2d
from tests.synthetic import SHAPES

KEY = torch.tensor(12345)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Gated(nn.Module):
    """A module of a user's own, with layers that are replaced inside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.relu = nn.Linear(6, 4), nn.Linear(6, 4), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.relu(self.one(x)) * torch.sigmoid(self.two(x))
        return out


class Halved(nn.Sequential):
    """A Sequential whose forward is its own."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = super().forward(x) / 2  # type: ignore[no-untyped-call]
        return out


class Leaky(nn.ReLU):
    """A ReLU in name only."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x > 0, x, 0.1 * x)


class Padded(nn.Conv2d):
    """A convolution that does more than one."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).tanh()


def shared() -> nn.Module:
    act = nn.ReLU()
    return nn.Sequential(nn.Linear(6, 5), act, nn.Linear(5, 5), act, nn.Linear(5, 2))


VECTORS, IMAGES, TEXT = (4, 6), (3, 2, 5, 6), (3, 4, 5)
MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "sequential": (
        lambda: nn.Sequential(
            nn.Linear(6, 5), nn.Sequential(nn.ReLU(), nn.Linear(5, 3)), nn.Tanh()
        ),
        VECTORS,
    ),
    "empty": (lambda: nn.Sequential(), VECTORS),
    "conv": (lambda: nn.Conv2d(2, 3, 3, padding=1), IMAGES),
    "conv-without-bias": (lambda: nn.Conv2d(2, 3, 3, bias=False), IMAGES),
    "conv-strided": (lambda: nn.Conv2d(2, 3, 3, stride=2), IMAGES),
    "conv-of-ones-own": (lambda: Padded(2, 3, 3), IMAGES),
    "linear": (lambda: nn.Linear(6, 5), VECTORS),
    "linear-without-bias": (lambda: nn.Linear(6, 5, bias=False), VECTORS),
    "linear-over-time": (lambda: nn.Linear(5, 2), TEXT),
    "max-pool": (lambda: nn.MaxPool2d(2), IMAGES),
    "max-pool-of-three": (lambda: nn.MaxPool2d(3, 1), IMAGES),
    "relu": (lambda: nn.ReLU(), VECTORS),
    "relu-in-place": (lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(inplace=True)), VECTORS),
    "relu-of-ones-own": (lambda: Leaky(), VECTORS),
    "dropout": (lambda: nn.Dropout(0.4), VECTORS),
    "dropout-of-channels": (lambda: nn.Dropout2d(0.4), (5, 8, 2, 2)),
    "dropout-of-all": (lambda: nn.Sequential(nn.Linear(6, 3), nn.Dropout(1.0)), VECTORS),
    "dropout-of-none": (lambda: nn.Dropout(0.0), VECTORS),
    "lstm": (lambda: LSTM(5, 3), TEXT),
    "embedding": (lambda: Embedding(5, 2), TEXT),
    "last-step": (lambda: LastStep(), TEXT),
    "flatten": (lambda: nn.Flatten(), IMAGES),
    "average-pool": (lambda: nn.AvgPool2d(2, padding=1), IMAGES),
    "identity": (lambda: nn.Identity(), VECTORS),
    "tanh": (lambda: nn.Tanh(), VECTORS),
    "group-norm": (lambda: nn.GroupNorm(2, 6), VECTORS),
    "layer-norm": (lambda: nn.LayerNorm(5), TEXT),
    "of-ones-own": (Gated, VECTORS),
    "sequential-of-ones-own": (lambda: Halved(nn.Linear(6, 5), nn.Tanh()), VECTORS),
    "one-relu-twice": (shared, VECTORS),
    "one-conv-twice": (
        lambda: nn.Sequential(*[nn.Conv2d(2, 2, 3, padding=1)] * 2, nn.ReLU()),
        IMAGES,
    ),
}


@pytest.mark.parametrize("name", MODULES)
def test_every_rule(name: str) -> None:
    """As an only child, so that it is replaced where it can be; the derivative by jvp and by finite
    differences.
    """
    build, shape = MODULES[name]
    torch.manual_seed(0)
    model = Model(nn.Sequential(build()).double())
    params, x, dx = model.init(), normal(*shape), normal(*shape, seed=1)

    def value(x: Tensor) -> Tensor:
        return model(params, x, KEY)

    y, dy = model.along(params, x, dx, KEY)
    torch.testing.assert_close(y, value(x))
    torch.testing.assert_close(dy, jvp(value, (x,), (dx,))[1])
    step = 1e-6
    torch.testing.assert_close(
        dy, (value(x + step * dx) - value(x - step * dx)) / (2 * step), rtol=1e-6, atol=1e-8
    )
    assert bool(dy.any()) == (name != "dropout-of-all")


@pytest.mark.parametrize("kind", SHAPES)
def test_the_papers_models_and_their_gradients(kind: str) -> None:
    """Also the gradient of the derivative in the weights, which FedMix descends."""
    model = Model(SHAPES[kind][0]().double())
    params, x, dx = model.init(), normal(3, *SHAPES[kind][1]), normal(3, *SHAPES[kind][1], seed=1)

    def in_one_pass(params: dict[str, Tensor]) -> Tensor:
        y, dy = model.along(params, x, dx, KEY)
        return (y.sin() + dy.sin()).sum()

    def in_two(params: dict[str, Tensor]) -> Tensor:
        y, dy = jvp(lambda x: model(params, x, KEY), (x,), (dx,))[:2]
        return torch.stack([y.sin(), dy.sin()]).sum()

    torch.testing.assert_close(in_one_pass(params), in_two(params))
    torch.testing.assert_close(grad(in_one_pass)(params), grad(in_two)(params))


@pytest.mark.parametrize("kind", SHAPES)
def test_the_papers_models_take_one_pass(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(module: nn.Module, *_: object) -> Tensor:
        raise AssertionError(f"{type(module).__name__} is left to jvp")

    monkeypatch.setattr(along, "_by_jvp", refuse)
    build, shape, _ = SHAPES[kind]
    model = Model(build())
    model.along(model.init(), torch.zeros(2, *shape), torch.zeros(1, *shape), KEY)


def test_a_module_that_is_no_sequential() -> None:
    torch.manual_seed(0)
    model = Model(Gated().double())
    params, x, dx = model.init(), normal(*VECTORS), normal(*VECTORS, seed=1)
    torch.testing.assert_close(
        model.along(params, x, dx, KEY), jvp(lambda x: model(params, x, KEY), (x,), (dx,))[:2]
    )


def test_a_kink_has_the_slope_of_pytorch() -> None:
    """ReLU at zero gives 0; a max-pool of equals gives the first one's."""
    x, dx = torch.zeros(1, 1, 2, 2), torch.tensor([[1.0, 2.0], [3.0, 4.0]]).view(1, 1, 2, 2)
    model = Model(nn.Sequential(nn.Identity(), nn.ReLU()))
    assert not bool(model.along({}, x, dx, KEY)[1].any())
    model = Model(nn.Sequential(nn.MaxPool2d(2)))
    assert model.along({}, x, dx, KEY)[1].item() == 1.0


def test_along_takes_parameters_from_outside() -> None:
    """It holds none of its own that could go stale."""
    module = _prepared(nn.Sequential(nn.Linear(6, 3))).double()
    weights = {"module.0.weight": normal(3, 6), "module.0.bias": normal(3, seed=1)}
    x, dx = normal(*VECTORS, seed=2), normal(*VECTORS, seed=3)
    y, dy = functional_call(Along(module), weights, (x, dx))
    torch.testing.assert_close(y, x @ weights["module.0.weight"].T + weights["module.0.bias"])
    torch.testing.assert_close(dy, dx @ weights["module.0.weight"].T)


# Which layers are replaced

REPLACED: list[tuple[nn.Module, type[nn.Module]]] = [
    (nn.Conv2d(2, 3, 3), Conv2d),
    (nn.Conv2d(2, 3, 5, padding=2, bias=False), Conv2d),
    (nn.Conv2d(2, 3, 1, padding=(1, 1)), Conv2d),
    (nn.Linear(2, 3), Linear),
    (nn.Linear(2, 3, bias=False), Linear),
    (nn.MaxPool2d(2), MaxPool2d),
    (nn.MaxPool2d((2, 2), (2, 2)), MaxPool2d),
    (nn.Dropout(0.1), KeyedDropout),
    (nn.Dropout2d(0.1), KeyedDropout),
]


class Own(nn.Linear):
    pass


LEFT: list[nn.Module] = [
    nn.Conv2d(2, 4, 3, stride=2),
    nn.Conv2d(2, 4, 3, groups=2),
    nn.Conv2d(2, 4, 3, dilation=2),
    nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect"),
    nn.Conv2d(2, 4, 3, padding="same"),
    nn.Conv2d(2, 4, 3, padding="valid"),
    nn.Conv2d(2, 4, 3, padding=(0, 1)),
    nn.Conv2d(2, 4, (3, 1)),
    nn.Conv1d(2, 4, 3),
    nn.ConvTranspose2d(2, 4, 3),
    nn.MaxPool2d(3),
    nn.MaxPool2d(2, 1),
    nn.MaxPool2d((2, 3)),
    nn.MaxPool2d(2, ceil_mode=True),
    nn.MaxPool2d(2, padding=1),
    nn.MaxPool2d(2, dilation=2),
    nn.MaxPool1d(2),
    nn.AvgPool2d(2),
    nn.Bilinear(2, 3, 4),
    Padded(2, 3, 3),
    Own(2, 3),
    Leaky(),
]


@pytest.mark.parametrize(("layer", "ours"), REPLACED, ids=str)
def test_plain_layers_are_replaced(layer: nn.Module, ours: type[nn.Module]) -> None:
    """In place, at any depth, with the parameters they had; not in the user's module."""
    module = nn.Sequential(nn.Sequential(nn.Tanh(), layer), layer)
    model = Model(module)
    inner = model.module[0][1]  # type: ignore[index]
    assert type(inner) is type(model.module[1]) is ours  # type: ignore[index]
    assert module[1] is layer
    assert type(layer) is not ours
    assert list(model.init()) == [n for n, _ in module.named_parameters()]
    assert all(torch.equal(p, model.init()[n]) for n, p in module.named_parameters())


def test_the_argument_of_prepared_is_changed() -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Linear(2, 3))
    weight = module[0].weight
    assert _prepared(module) is module
    assert isinstance(module[0], Conv2d)
    assert module[0].weight is weight


@pytest.mark.parametrize("layer", LEFT, ids=str)
def test_other_layers_are_left_alone(layer: nn.Module) -> None:
    module = _prepared(nn.Sequential(copy.deepcopy(layer)))
    assert type(module[0]) is type(layer)  # type: ignore[index]


@pytest.mark.parametrize(
    "layer", [m for m, _ in REPLACED if not isinstance(m, nn.modules.dropout._DropoutNd)], ids=str
)
def test_what_replaces_computes_the_same(layer: nn.Module) -> None:
    x = normal(2, 2, 7, 8) if not isinstance(layer, nn.Linear) else normal(4, 2)
    layer = copy.deepcopy(layer).double()
    model = Model(nn.Sequential(layer))
    torch.testing.assert_close(model(model.init(), x, KEY), layer(x))
    torch.testing.assert_close(model(model.init(), x), layer(x))


def test_a_users_model_keeps_its_types() -> None:
    module = models.vgg()
    before = [type(part) for part in module.modules()]
    Model(module)
    assert [type(part) for part in module.modules()] == before


def test_a_hook_is_run() -> None:
    """What a forward hook makes of a layer's output counts for value and derivative alike."""
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    module[2].register_forward_hook(lambda _module, _args, output: 2 * output)
    model = Model(module)
    params, x, dx = (
        model.init(),
        torch.randn(5, 3, dtype=torch.float64),
        torch.randn(5, 3, dtype=torch.float64),
    )
    key = torch.tensor(0)
    value, derivative = model.along(params, x, dx, key)
    expected = torch.func.jvp(lambda x: model(params, x, key), (x,), (dx,))
    torch.testing.assert_close(value, expected[0])
    torch.testing.assert_close(derivative, expected[1])
