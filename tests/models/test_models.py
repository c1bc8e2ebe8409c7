"""Models: parameters counted by hand, layers where the paper has them, and any module as a pure function."""

from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedmix import BadInput, Federation, FedMix, Hidden, NaiveMix, Supervised, Training, models
from fedmix.data import FederatedData, from_arrays
from fedmix.models import LSTM, KeyedDropout, Model, initialised
from fedmix.types import Params
from tests.synthetic import SHAPES

KEY = torch.tensor(12345)
ENGINES: tuple[Literal["sequential"], Literal["vectorised"]] = ("sequential", "vectorised")


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def inputs(kind: str, n: int = 3, seed: int = 0) -> Tensor:
    return torch.randn(n, *SHAPES[kind][1], generator=torch.Generator().manual_seed(seed))


def arrays(n: int = 12, width: int = 4, classes: int = 3, clients: int = 2) -> FederatedData:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((n, width)), rng.integers(0, classes, n)
    return from_arrays(x, y, np.array_split(np.arange(n), clients), (x, y), classes=classes)


# The paper's models


def test_parameters_of_lenet() -> None:
    """5x5 convolutions 1 to 6 to 16 channels, then 16·5·5 to 120 to 84 to 62."""
    layers = [1 * 6 * 25 + 6, 6 * 16 * 25 + 16, 400 * 120 + 120, 120 * 84 + 84, 84 * 62 + 62]
    assert [count(layer) for layer in models.lenet()] == layers
    assert count(models.lenet()) == 66_126


def test_parameters_of_vgg() -> None:
    """3x3 convolutions 3, 32, 64, 128, 128, 256, 256; three max-pools leave 4x4; then 512, 512, 10."""
    layers = [896, 18_496, 73_856, 147_584, 295_168, 590_080, 4096 * 512 + 512, 512 * 512 + 512, 512 * 10 + 10]
    assert layers[:2] == [9 * 3 * 32 + 32, 9 * 32 * 64 + 64]
    assert [count(layer) for layer in models.vgg()] == layers
    assert count(models.vgg()) == 3_491_530
    assert count(models.vgg(classes=100)) == 3_491_530 + 90 * 513


@pytest.mark.parametrize(("classes", "embedding", "hidden"), [(84, 8, 256), (12, 4, 8)])
def test_parameters_of_charlstm(classes: int, embedding: int, hidden: int) -> None:
    """An LSTM layer has four gates, each with input weights, hidden weights and one bias."""
    V, e, H = classes, embedding, hidden
    layers = [V * e, 4 * H * (e + H + 1), 4 * H * (H + H + 1), H * V + V]
    assert [count(layer) for layer in models.charlstm(classes, embedding, hidden)] == layers


def test_parameters_of_small_models() -> None:
    assert [count(layer) for layer in models.digits_cnn()] == [9 * 16 + 16, 9 * 16 * 32 + 32, 512 * 64 + 64, 64 * 10 + 10]
    assert [count(layer) for layer in models.mlp(7, 3, 5)] == [7 * 5 + 5, 5 * 3 + 3]


@pytest.mark.parametrize(
    ("module", "layers", "shape", "outputs"),
    [
        (models.lenet(), 5, (1, 28, 28), 62),
        (models.lenet(10, channels=3), 5, (3, 28, 28), 10),
        (models.vgg(), 9, (3, 32, 32), 10),
        (models.charlstm(), 4, (20, 84), 84),
        (models.digits_cnn(), 4, (1, 8, 8), 10),
        (models.mlp(7, 3), 2, (7,), 3),
    ],
)
def test_layers_and_shapes(module: nn.Sequential, layers: int, shape: tuple[int, ...], outputs: int) -> None:
    assert len(module) == layers
    model = Model(module)
    assert model(model.init(), torch.zeros(2, *shape)).shape == (2, outputs)
    assert model(model.init(), torch.zeros(2, *shape), KEY).shape == (2, outputs)


def test_dropout_of_vgg_is_where_the_paper_has_it() -> None:
    """Three times, with rate 0.1: after the second and third max-pool and before the last full layer."""
    parts = [p for p in Model(models.vgg()).module.modules() if not isinstance(p, nn.Sequential)]
    names = [type(p).__name__.removesuffix("2d") for p in parts]
    full = ["Linear", "ReLU"]
    block = ["Conv", "ReLU", "Conv", "MaxPool", "ReLU"]
    assert names == [*block, *block, "KeyedDropout", *block, "KeyedDropout", "Flatten", *full, *full, "KeyedDropout", "Linear"]
    dropouts = [p for p in parts if isinstance(p, KeyedDropout)]
    assert [d.p for d in dropouts] == [0.1] * 3
    assert len({d.site for d in dropouts}) == 3


# The LSTM


def test_lstm_is_pytorchs() -> None:
    """PyTorch has two biases, of which only the sum matters."""
    torch.manual_seed(0)
    theirs, ours = nn.LSTM(5, 7, batch_first=True), LSTM(5, 7)
    reference = dict(theirs.named_parameters())
    with torch.no_grad():
        ours.input_weight.copy_(reference["weight_ih_l0"])
        ours.hidden_weight.copy_(reference["weight_hh_l0"])
        ours.bias.copy_(reference["bias_ih_l0"] + reference["bias_hh_l0"])
    x = torch.randn(3, 11, 5) * 2
    expected = theirs(x)[0]
    assert float((ours(x) - expected).detach().abs().max()) < 1e-6
    expected.square().sum().backward()
    ours(x).square().sum().backward()
    for mine, name in ((ours.input_weight, "weight_ih_l0"), (ours.hidden_weight, "weight_hh_l0"), (ours.bias, "bias_ih_l0")):
        assert mine.grad is not None
        torch.testing.assert_close(mine.grad, reference[name].grad, rtol=1e-4, atol=1e-5)


def test_charlstm_is_an_embedding_two_lstms_and_a_full_layer() -> None:
    module = models.charlstm(12, 4, 8)
    weights = dict(module.named_parameters())
    letters = torch.randint(12, (3, 9), generator=torch.Generator().manual_seed(0))
    stacked = nn.LSTM(4, 8, num_layers=2, batch_first=True)
    with torch.no_grad():
        for layer, prefix in enumerate(("1", "2.0")):
            getattr(stacked, f"weight_ih_l{layer}").copy_(weights[f"{prefix}.input_weight"])
            getattr(stacked, f"weight_hh_l{layer}").copy_(weights[f"{prefix}.hidden_weight"])
            getattr(stacked, f"bias_ih_l{layer}").copy_(weights[f"{prefix}.bias"])
            getattr(stacked, f"bias_hh_l{layer}").zero_()
        states = stacked(weights["0.weight"][letters])[0][:, -1]
        expected = states @ weights["3.weight"].T + weights["3.bias"]
        got = module(torch.nn.functional.one_hot(letters, 12).float())
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


# Cuts


@pytest.mark.parametrize("key", [None, KEY], ids=["evaluating", "training"])
@pytest.mark.parametrize("kind", SHAPES)
def test_head_then_tail_is_the_whole(kind: str, key: Tensor | None) -> None:
    module = SHAPES[kind][0]()
    model = Model(module)
    params, x = model.init(), inputs(kind)
    whole = model(params, x, key)
    for layer in range(1, len(module)):
        head, tail = model.head(layer), model.tail(layer)
        assert torch.equal(tail(params, head(params, x, key), key), whole), layer
        assert head.names + tail.names == model.names
    assert model.tail(0).names == model.names


def test_a_cut_keeps_a_layer_that_is_used_twice() -> None:
    """One ReLU object in two places is common, and both places count as layers."""
    act = nn.ReLU()
    model = Model(nn.Sequential(nn.Linear(4, 5), act, nn.Linear(5, 5), act, nn.Linear(5, 3)))
    params, x = model.init(), torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    for layer in range(1, 5):
        assert torch.equal(model.tail(layer)(params, model.head(layer)(params, x)), model(params, x)), layer
        expected = {f"{i}.{n}" for i in (0, 2, 4) if i >= layer for n in ("weight", "bias")}
        assert set(model.tail(layer).names) == expected


# Dropout


def test_dropout_is_keyed() -> None:
    model = Model(nn.Sequential(nn.Linear(4, 50), nn.Dropout(0.5), nn.Linear(50, 3)))
    params, x = model.init(), torch.ones(6, 4)
    one, same, other, none = (model(params, x, k) for k in (KEY, KEY, KEY + 1, None))
    assert torch.equal(one, same)
    assert not torch.allclose(one, other)
    assert not torch.allclose(one, none)
    plain = (x @ params["0.weight"].T + params["0.bias"]) @ params["2.weight"].T + params["2.bias"]
    torch.testing.assert_close(none, plain)


def test_dropout_scales_what_survives() -> None:
    """At rate 0.2, one value in five is 0 and the others are divided by 0.8 (4,000 values: deviation 0.0063)."""
    model = Model(nn.Sequential(nn.Identity(), nn.Dropout(0.2)))
    out = model({}, torch.ones(40, 100), KEY)
    assert set(out.flatten().tolist()) == {0.0, 1.25}
    assert abs(float((out == 0).float().mean()) - 0.2) < 5 * 0.0063
    assert torch.equal(model({}, torch.ones(40, 100)), torch.ones(40, 100))


@pytest.mark.parametrize(("kind", "shape"), [(nn.Dropout1d, (20, 30, 5)), (nn.Dropout2d, (20, 30, 2, 3))])
def test_whole_channels_are_dropped(kind: type[nn.Module], shape: tuple[int, ...]) -> None:
    model = Model(nn.Sequential(nn.Identity(), kind(0.5)))
    out = model({}, torch.ones(shape), KEY).flatten(2)
    assert bool((out == out[:, :, :1]).all())
    assert len({tuple(channels) for channels in out[:, :, 0].tolist()}) == 20  # each sample its own
    assert abs(float((out[:, :, 0] == 0).float().mean()) - 0.5) < 5 * (0.25 / 600) ** 0.5
    single = Model(nn.Sequential(nn.Identity(), nn.Dropout(0.5)))({}, torch.ones(shape), KEY).flatten(2)
    assert not bool((single == single[:, :, :1]).all())


def test_two_dropout_layers_have_different_masks() -> None:
    model = Model(nn.Sequential(nn.Dropout(0.5), nn.Identity(), nn.Dropout(0.5)))
    first = model.head(1)({}, torch.ones(10, 100), KEY) == 0
    second = model.tail(2)({}, torch.ones(10, 100), KEY) == 0
    agree = float((first == second).float().mean())
    assert abs(agree - 0.5) < 5 * (0.25 / 1000) ** 0.5


def test_a_dropout_layer_used_twice_works() -> None:
    drop = nn.Dropout(0.5)
    model = Model(nn.Sequential(nn.Linear(4, 40), drop, nn.Linear(40, 40), drop, nn.Linear(40, 3)))
    params, x = model.init(), torch.ones(6, 4)
    assert torch.equal(model(params, x, KEY), model(params, x, KEY))


def test_a_rate_of_one_drops_everything() -> None:
    """As nn.Dropout(1.0) does, and not NaN."""
    out = Model(nn.Sequential(nn.Identity(), nn.Dropout(1.0)))({}, torch.ones(4, 5), KEY)
    assert out.tolist() == [[0.0] * 5] * 4


def test_the_users_module_is_left_alone() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)).eval()
    before = {n: p.clone() for n, p in module.state_dict().items()}
    data = arrays()
    federation = Federation(module, data, Supervised(), Training(2, lr=1.0))
    list(federation.run(1))
    assert isinstance(module[1], nn.Dropout)
    assert not module.training
    assert all(torch.equal(p, before[n]) for n, p in module.state_dict().items())
    assert not torch.equal(federation.params["0.weight"], before["0.weight"])


# Initial weights


def test_he_initialisation() -> None:
    """Variance 2/fan_in: for n weights, s²/σ² deviates from 1 by sqrt(2/n). Biases are zero."""
    module = initialised(models.vgg, 0)
    fans = [27, 288, 576, 1152, 1152, 2304, 4096, 512, 512]
    layers = [m for m in module.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    for layer, fan_in in zip(layers, fans, strict=True):
        weight = layer.weight.detach().double()
        n = weight.numel()
        assert abs(float(weight.var()) / (2 / fan_in) - 1) < 5 * (2 / n) ** 0.5
        assert abs(float(weight.mean())) < 5 * (2 / fan_in / n) ** 0.5
        assert layer.bias is not None
        assert not bool(layer.bias.any())


def test_pytorchs_initialisation() -> None:
    """Uniform within 1/sqrt(fan_in), so variance 1/(3·fan_in), a sixth of He's; biases are drawn too."""
    layer = initialised(lambda: nn.Linear(400, 300), 0, "torch")
    assert isinstance(layer, nn.Linear)
    weight = layer.weight.detach().double()
    assert float(weight.abs().max()) <= 1 / 20
    assert abs(float(weight.var()) * 3 * 400 - 1) < 5 * (0.8 / 120_000) ** 0.5  # a uniform's kurtosis is 1.8
    assert float(layer.bias.detach().abs().min()) > 0
    with pytest.raises(BadInput, match="initialisation 'xavier' is unknown; choose one of he, he-conv, torch"):
        initialised(nn.Module, 0, "xavier")  # type: ignore[arg-type]


def test_hes_initialisation_of_convolutions_alone() -> None:
    """Full layers keep PyTorch's weights, a sixth of He's variance, and its biases."""
    conv, full = initialised(lambda: nn.Sequential(nn.Conv2d(20, 30, 3), nn.Linear(400, 300)), 0, "he-conv").children()
    assert isinstance(conv, nn.Conv2d)
    assert conv.bias is not None
    assert isinstance(full, nn.Linear)
    n = conv.weight.numel()
    assert abs(float(conv.weight.detach().double().var()) * 180 / 2 - 1) < 5 * (2 / n) ** 0.5
    assert not bool(conv.bias.any())
    assert float(full.weight.detach().abs().max()) <= 1 / 20
    assert float(full.bias.detach().abs().min()) > 0


@pytest.mark.parametrize("how", ["he", "torch"])
@pytest.mark.parametrize("kind", ["digits_cnn", "charlstm"])
def test_initial_weights_are_the_seeds(kind: str, how: Literal["he", "torch"]) -> None:
    def weights(seed: int) -> Tensor:
        return nn.utils.parameters_to_vector(initialised(SHAPES[kind][0], seed, how).parameters()).detach()

    torch.manual_seed(1)
    first = weights(0)
    after = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(3), after)  # the global generator did not move
    torch.manual_seed(2)
    assert torch.equal(weights(0), first)
    assert not torch.equal(weights(1), first)


def test_training_leaves_the_global_generators_alone() -> None:
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    expected = torch.rand(2).tolist(), np.random.rand(2).tolist()  # noqa: NPY002
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    federation = Federation(initialised(lambda: models.mlp(4, 3), 0), arrays(), NaiveMix(0.1), Training(2))
    list(federation.run(1))
    assert (torch.rand(2).tolist(), np.random.rand(2).tolist()) == expected  # noqa: NPY002


# Modules of one's own


class Residual(nn.Module):
    """Not a Sequential, with tied weights, a buffer and a parameter outside any layer."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.two.weight = self.one.weight
        self.last = nn.Linear(4, 3, bias=False)
        self.gain = nn.Parameter(torch.tensor(0.7))
        self.register_buffer("scale", torch.tensor([1.0, 0.5, -2.0, 1.5]))

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.scale
        x = x + torch.tanh(self.two(torch.tanh(self.one(x))))
        out: Tensor = self.gain * self.last(x)
        return out


def stepped(module: nn.Module, data: FederatedData, lr: float) -> dict[str, Tensor]:
    """By plain autograd: every client takes one step on all its samples, and equal clients are averaged."""
    total: dict[str, Tensor] = {}
    for k in range(len(data.clients)):
        rows = data.clients[k]
        module.zero_grad()
        loss = torch.nn.functional.cross_entropy(module(torch.from_numpy(data.x[rows])), torch.from_numpy(data.y[rows]))
        loss.backward()  # type: ignore[no-untyped-call]
        for name, p in module.named_parameters():
            after = p.detach() - lr * p.grad if p.grad is not None else p.detach()
            total[name] = total.get(name, torch.zeros_like(after)) + after / len(data.clients)
    return total


@pytest.mark.parametrize("engine", ENGINES)
def test_a_module_of_ones_own(engine: Literal["sequential", "vectorised"]) -> None:
    """Tied weights, buffers and all: the round is what autograd gives."""
    torch.manual_seed(0)
    module, data = Residual(), arrays(n=12, clients=3)
    expected = stepped(module, data, 0.3)
    federation = Federation(module, data, Supervised(), Training(3, batch_size=4, lr=0.3), engine=engine)
    list(federation.run(1))
    assert federation.params.keys() == expected.keys() == {"one.weight", "one.bias", "two.bias", "last.weight", "gain"}
    for name, p in expected.items():
        torch.testing.assert_close(federation.params[name], p, rtol=1e-5, atol=1e-6)


def test_engines_agree_on_a_module_of_ones_own() -> None:
    torch.manual_seed(0)
    module, runs = Residual(), list[Params]()
    for engine in ENGINES:
        federation = Federation(module, arrays(), FedMix(0.1), Training(2, batch_size=4, lr=0.1), engine=engine)
        list(federation.run(2))
        runs.append(federation.params)
    for name, p in runs[0].items():
        torch.testing.assert_close(p, runs[1][name], rtol=1e-5, atol=1e-6)


def test_frozen_parameters_stay() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    module[0].requires_grad_(False)
    before = {n: p.detach().clone() for n, p in module.named_parameters()}
    federation = Federation(module, arrays(), Supervised(), Training(2, lr=0.5))
    list(federation.run(1))
    assert torch.equal(federation.params["0.weight"], before["0.weight"])
    assert not torch.equal(federation.params["2.weight"], before["2.weight"])


# Refusals


class ByItself(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(torch.nn.functional.dropout(x, 0.5, self.training))
        return out


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.linear(x), x


FIRST = nn.Linear(4, 3)
REFUSED: list[tuple[str, nn.Module]] = [
    (
        r"layer '1' \(BatchNorm1d\) keeps statistics of whole batches, .*use nn.GroupNorm or no normalisation",
        nn.Sequential(FIRST, nn.BatchNorm1d(3)),
    ),
    (r"it \(BatchNorm2d\) keeps statistics", nn.BatchNorm2d(3)),
    (r"layer '0' \(LSTM\) has no forward-mode derivative; use fedmix.models.LSTM", nn.Sequential(nn.LSTM(4, 3))),
    (r"layer '0' \(GRU\) has no forward-mode", nn.Sequential(nn.GRU(4, 3))),
    (
        r"layer '1' \(AlphaDropout\) draws random numbers of its own; use nn.Dropout",
        nn.Sequential(FIRST, nn.AlphaDropout()),
    ),
    (r"draws random numbers by itself .*use nn.Dropout layers instead", ByItself()),
    (r"output has shape \(2, 5\) but the labels \(2, 3\); give its last layer 3 outputs", nn.Linear(4, 5)),
    (r"does not take inputs of shape \(2, 4\)", nn.Linear(7, 3)),
    (r"does not take inputs of shape \(2, 4\)", nn.Conv2d(1, 3, 3)),
    (r"returns a tuple", Pair()),
]


@pytest.mark.parametrize(("words", "module"), REFUSED, ids=[type(m).__name__ + str(i) for i, (_, m) in enumerate(REFUSED)])
def test_models_that_cannot_be_trained_are_refused(words: str, module: nn.Module) -> None:
    with pytest.raises(BadInput, match=words) as caught:
        Federation(module, arrays(), Supervised(), Training(2))
    assert "\n" not in str(caught.value)


def test_group_norm_is_fine() -> None:
    federation = Federation(
        nn.Sequential(nn.Linear(4, 6), nn.GroupNorm(2, 6), nn.Linear(6, 3)), arrays(), FedMix(0.1), Training(2)
    )
    assert next(federation.run(1)).round == 1


@pytest.mark.parametrize(
    ("words", "module", "layer"),
    [
        ("a Residual cannot start from layer 1; hidden-state mixing needs an nn.Sequential", Residual(), 1),
        (r"layer 2 is not inside this model; choose 1\.\.1", models.mlp(4, 3), 2),
        (r"layer 9 is not inside this model; choose 1\.\.1", models.mlp(4, 3), 9),
    ],
)
def test_cuts_that_cannot_be_made_are_refused(words: str, module: nn.Module, layer: int) -> None:
    with pytest.raises(BadInput, match=words):
        Federation(module, arrays(), Hidden(FedMix(0.1), layer), Training(2))


class Halved(nn.Sequential):
    """A Sequential in name only: its parts one after another are not what it computes."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = super().forward(x) / 2  # type: ignore[no-untyped-call]
        return out


def test_a_sequential_with_a_forward_of_its_own_cannot_be_cut() -> None:
    module = Halved(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    assert next(Federation(module, arrays(), FedMix(0.1), Training(2)).run(1)).round == 1
    with pytest.raises(BadInput, match="a Halved cannot start from layer 1"):
        Federation(module, arrays(), Hidden(FedMix(0.1), 1), Training(2))


def test_weights_tied_across_the_cut_are_refused() -> None:
    first, last = nn.Linear(4, 4), nn.Linear(4, 4)
    last.weight = first.weight
    with pytest.raises(BadInput, match=r"cannot be cut at layer 1: '2.weight' is tied to a weight before the cut"):
        Federation(nn.Sequential(first, nn.Tanh(), last), arrays(classes=4), Hidden(FedMix(0.1), 1), Training(2))


def test_layer_zero_is_no_hidden_state() -> None:
    with pytest.raises(BadInput, match="hidden states exist after layer 1 or later"):
        Hidden(FedMix(0.1), 0)
    model = Model(models.mlp(4, 3))
    for layer in (0, -1):
        with pytest.raises(BadInput, match=f"layer {layer} is not inside this model"):
            model.head(layer)
