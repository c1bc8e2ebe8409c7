"""Models: parameters counted by hand, layers where the paper has them, and how weights begin."""

import math
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedmix import BadInput, Federation, NaiveMix, Training, models
from fedmix.core.rng import stream
from fedmix.models import LSTM, KeyedDropout, Model, initialised
from tests.synthetic import SHAPES, arrays

KEY = torch.tensor(12345)


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


# The paper's models


def test_parameters_of_lenet() -> None:
    """5x5 convolutions 1 to 6 to 16 channels, then 16·5·5 to 120 to 84 to 62."""
    layers = [1 * 6 * 25 + 6, 6 * 16 * 25 + 16, 400 * 120 + 120, 120 * 84 + 84, 84 * 62 + 62]
    assert [count(layer) for layer in models.lenet()] == layers
    assert count(models.lenet()) == 66_126


def test_parameters_of_vgg() -> None:
    """3x3 convolutions 3-32-64-128-128-256-256; three max-pools leave 4x4; then 512, 512, 10."""
    layers = [
        896,
        18_496,
        73_856,
        147_584,
        295_168,
        590_080,
        4096 * 512 + 512,
        512 * 512 + 512,
        512 * 10 + 10,
    ]
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
    assert [count(layer) for layer in models.digits_cnn()] == [
        9 * 16 + 16,
        9 * 16 * 32 + 32,
        512 * 64 + 64,
        64 * 10 + 10,
    ]
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
def test_layers_and_shapes(
    module: nn.Sequential, layers: int, shape: tuple[int, ...], outputs: int
) -> None:
    assert len(module) == layers
    model = Model(module)
    assert model(model.init(), torch.zeros(2, *shape)).shape == (2, outputs)
    assert model(model.init(), torch.zeros(2, *shape), KEY).shape == (2, outputs)


def test_dropout_of_vgg_is_where_the_paper_has_it() -> None:
    """Three times, with rate 0.1: after the second and third max-pool and before the last full
    layer.
    """
    parts = [p for p in Model(models.vgg()).module.modules() if not isinstance(p, nn.Sequential)]
    names = [type(p).__name__.removesuffix("2d") for p in parts]
    full = ["Linear", "ReLU"]
    block = ["Conv", "ReLU", "Conv", "MaxPool", "ReLU"]
    assert names == [
        *block,
        *block,
        "KeyedDropout",
        *block,
        "KeyedDropout",
        "Flatten",
        *full,
        *full,
        "KeyedDropout",
        "Linear",
    ]
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
    for mine, name in (
        (ours.input_weight, "weight_ih_l0"),
        (ours.hidden_weight, "weight_hh_l0"),
        (ours.bias, "bias_ih_l0"),
    ):
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
    """Uniform within 1/sqrt(fan_in), so variance 1/(3·fan_in), a sixth of He's; biases are drawn
    too.
    """
    layer = initialised(lambda: nn.Linear(400, 300), 0, "torch")
    assert isinstance(layer, nn.Linear)
    weight = layer.weight.detach().double()
    assert float(weight.abs().max()) <= 1 / 20
    assert (
        abs(float(weight.var()) * 3 * 400 - 1) < 5 * (0.8 / 120_000) ** 0.5
    )  # a uniform's kurtosis is 1.8
    assert float(layer.bias.detach().abs().min()) > 0
    with pytest.raises(
        BadInput, match="initialisation 'xavier' is unknown; choose one of he, he-conv, torch"
    ):
        initialised(nn.Module, 0, "xavier")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="`build` is of type Linear; give a function that makes"):
        initialised(layer, 0)
    with pytest.raises(BadInput, match=r"`build\(\)` is of type int; let it return the module"):
        initialised(lambda: 3, 0)  # type: ignore[arg-type, return-value]


def test_hes_initialisation_of_convolutions_alone() -> None:
    """Full layers keep PyTorch's weights, a sixth of He's variance, and its biases."""
    conv, full = initialised(
        lambda: nn.Sequential(nn.Conv2d(20, 30, 3), nn.Linear(400, 300)), 0, "he-conv"
    ).children()
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
        return nn.utils.parameters_to_vector(
            initialised(SHAPES[kind][0], seed, how).parameters()
        ).detach()

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
    federation = Federation(
        initialised(lambda: models.mlp(4, 3), 0), arrays(), NaiveMix(0.1), Training(2)
    )
    list(federation.run(1))
    assert (torch.rand(2).tolist(), np.random.rand(2).tolist()) == expected  # noqa: NPY002


def test_a_users_own_initialisation_stays() -> None:
    """Set in a constructor, by `apply`, by another parameter, or in a bias alone; and layers that
    nobody set are He's.
    """
    torch.manual_seed(7)
    pretrained = nn.Parameter(torch.randn(3, 4))

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 2, 3)
            nn.init.orthogonal_(self.conv.weight)
            self.scaled, self.tied = nn.Linear(4, 3), nn.Linear(4, 3)
            self.scaled.weight.data.mul_(2)
            self.tied.weight = pretrained
            self.biased, self.plain = nn.Linear(4, 3), nn.Linear(400, 300)
            nn.init.constant_(self.biased.bias, -1.0)

    with torch.random.fork_rng():
        torch.manual_seed(int(stream(0, "initialise").integers(2**62)))
        by_hand = Own()
    made = initialised(Own, 0)
    for name, p in by_hand.named_parameters():
        assert torch.equal(p, made.get_parameter(name)) == (not name.startswith("plain")), name
    weight = made.get_parameter("plain.weight")
    assert float(weight.detach().std()) == pytest.approx(math.sqrt(2 / 400), rel=0.02)
    assert not made.get_parameter("plain.bias").any()
    assert nn.Linear.reset_parameters.__qualname__ == "Linear.reset_parameters"  # as it was

    def zero(part: nn.Module) -> None:
        if isinstance(part, nn.Linear):
            nn.init.zeros_(part.weight)

    assert not any(p.any() for n, p in initialised(lambda: Own().apply(zero), 0).named_parameters()
                   if n.endswith("weight") and "conv" not in n)  # fmt: skip
