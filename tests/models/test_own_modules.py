"""Any module as a pure function: rounds as autograd has them, and modules that cannot be trained
are refused.
"""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.utils.prune
from torch import Tensor, nn

from fedmix import BadInput, Federation, FedMix, FedmixWarning, Supervised, Training
from fedmix.core.losses import squared_error
from fedmix.core.types import Params
from fedmix.data import FederatedData
from fedmix.models import Model
from fedmix.training.engines import Engine
from tests.synthetic import ENGINES, NAMES, arrays


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
    """By plain autograd: every client takes one step on all its samples, and equal clients are
    averaged.
    """
    total: dict[str, Tensor] = {}
    for k in range(len(data.clients)):
        rows = data.clients[k]
        module.zero_grad()
        loss = torch.nn.functional.cross_entropy(
            module(torch.from_numpy(data.x[rows])), torch.from_numpy(data.y[rows])
        )
        loss.backward()  # type: ignore[no-untyped-call]
        for name, p in module.named_parameters():
            after = p.detach() - lr * p.grad if p.grad is not None else p.detach()
            total[name] = total.get(name, torch.zeros_like(after)) + after / len(data.clients)
    return total


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
def test_a_module_of_ones_own(engine: Engine) -> None:
    """Tied weights, buffers and all: the round is what autograd gives."""
    torch.manual_seed(0)
    module, data = Residual(), arrays(n=12, clients=3)
    expected = stepped(module, data, 0.3)
    federation = Federation(
        module, data, Supervised(), Training(3, batch_size=4, lr=0.3), engine=engine
    )
    list(federation.run(1))
    assert (
        federation.params.keys()
        == expected.keys()
        == {"one.weight", "one.bias", "two.bias", "last.weight", "gain"}
    )
    for name, p in expected.items():
        torch.testing.assert_close(federation.params[name], p, rtol=1e-5, atol=1e-6)


def engines_agree(module: nn.Module, rtol: float, atol: float) -> None:
    """Two rounds of FedMix on each give the same weights."""
    runs = list[Params]()
    for engine in ENGINES:
        federation = Federation(
            module, arrays(), FedMix(0.1), Training(2, batch_size=4, lr=0.1), engine=engine
        )
        list(federation.run(2))
        runs.append(federation.params)
    for name, p in runs[0].items():
        torch.testing.assert_close(p, runs[1][name], rtol=rtol, atol=atol)


def test_engines_agree_on_a_module_of_ones_own() -> None:
    torch.manual_seed(0)
    engines_agree(Residual(), rtol=1e-5, atol=1e-6)


def test_frozen_parameters_stay() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    module[0].requires_grad_(False)
    before = {n: p.detach().clone() for n, p in module.named_parameters()}
    federation = Federation(module, arrays(), Supervised(), Training(2, lr=0.5))
    list(federation.run(1))
    assert torch.equal(federation.params["0.weight"], before["0.weight"])
    assert not torch.equal(federation.params["2.weight"], before["2.weight"])


@pytest.mark.parametrize("mode", ["both", "evaluation"])
def test_a_model_that_changes_its_inputs_is_refused_and_leaves_the_arrays_as_they_were(
    mode: str,
) -> None:
    """Arrays are not copied, so whoever trains on them next, with another model, would train and be
    tested on others.
    """

    class InPlace(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x if self.training and mode == "evaluation" else torch.relu_(x))

    data = arrays()
    before = copy.deepcopy((data.x, data.held_out.x))
    with pytest.raises(BadInput, match="changes its inputs in place"):
        Federation(InPlace(4, 3), data, FedMix(0.1), Training(2))
    for now, then in zip((data.x, data.held_out.x), before, strict=True):
        assert (then < 0).any()  # which a ReLU would change
        np.testing.assert_array_equal(now, then)


class Attention(nn.Module):
    """A transformer's layer; without dropout, it goes through PyTorch's fused attention."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.layer, self.last = (
            nn.TransformerEncoderLayer(2, 1, 8, batch_first=True),
            nn.Linear(4, 3),
        )
        self.layer.self_attn.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.layer(x.view(-1, 2, 2)).flatten(1))
        return out


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_fedmix_trains_a_transformer(dropout: float) -> None:
    """Its derivative is that of finite differences in float64, and both engines agree, with the
    layer's own dropout and that of its attention.
    """
    torch.manual_seed(0)
    module = Attention(dropout)
    exact = Model(copy.deepcopy(module).double())
    x, dx, params, key = (
        torch.randn(5, 4).double(),
        torch.randn(1, 4).double(),
        exact.init(),
        torch.tensor(3),
    )
    there, back = (exact(params, x + step * dx, key) for step in (1e-6, -1e-6))
    torch.testing.assert_close(
        exact.along(params, x, dx, key)[1], (there - back) / 2e-6, rtol=1e-6, atol=1e-7
    )
    engines_agree(module, rtol=1e-4, atol=1e-5)


# Refusals


class ByItself(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(
            torch.nn.functional.dropout(x, 1e-6, self.training)
        )  # two calls hardly ever differ
        return out


class Silent(nn.Linear):
    """Refuses its inputs without a word."""

    def forward(self, x: Tensor) -> Tensor:  # noqa: ARG002 - as every forward
        raise ValueError


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.linear(x), x


class Stateful(ByItself):
    """Its `forward` is given; it may change the buffer `seen` and the attribute `calls`."""

    seen: Tensor

    def __init__(self, forward: Callable[["Stateful", Tensor], Tensor]) -> None:
        super().__init__()
        self.given, self.calls = forward, 0
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.given(self, x)


def replaced(self: Stateful, x: Tensor) -> Tensor:
    """A running mean, as batch norm has it: a pure function of the module would forget it, and test
    with the first one.
    """
    if self.training:
        self.seen = 0.9 * self.seen + 0.1 * x.mean(0)
    return self.linear(x - self.seen)  # type: ignore[no-any-return]


def in_place(self: Stateful, x: Tensor) -> Tensor:
    self.seen += 1
    return self.linear(x)  # type: ignore[no-any-return]


def counted(self: Stateful, x: Tensor) -> Tensor:
    self.calls += 1
    return self.calls * self.linear(x)  # type: ignore[no-any-return]


def centred(self: Stateful, x: Tensor) -> Tensor:
    return self.linear(x - x.mean(0))  # type: ignore[no-any-return]


def scaled(self: Stateful, x: Tensor) -> Tensor:
    return self.linear(x / x.abs().max())  # type: ignore[no-any-return]


@pytest.mark.parametrize("largest", [0, 1])
def test_a_model_that_looks_at_the_largest_of_a_batch_is_refused(largest: int) -> None:
    """Whichever sample that is: for it alone, nothing changes."""
    data = arrays()
    data.x[largest] *= 9
    with pytest.raises(BadInput, match="output for a sample depends on the other samples"):
        Federation(Stateful(scaled), data, Supervised(), Training(2))


class Listed(nn.Module):
    """Its weights are in `held`, and a layer of its own in a list, which PyTorch knows of."""

    def __init__(self, held: object) -> None:
        super().__init__()
        self.linear, self.held = nn.Linear(4, 3), held
        self.again = [self.linear]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x)
        return out


class Looked(nn.Module):
    """A layer that looks codes up."""

    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        self.table = table

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.table(x.long().clamp(0))[:, 0]
        return out


def unset() -> nn.Module:
    module = nn.Linear(4, 3)
    nn.init.constant_(module.weight, torch.nan)
    return module


def pruned() -> nn.Module:
    return nn.utils.prune.random_unstructured(nn.Linear(4, 3), "weight", 0.5)  # type: ignore[no-any-return, no-untyped-call]


def with_parameter(kind: torch.dtype) -> nn.Module:
    module = nn.Linear(4, 3)
    module.other = nn.Parameter(torch.ones(2, dtype=kind), requires_grad=False)
    return module


FIRST = nn.Linear(4, 3)
REFUSED: list[tuple[str, nn.Module]] = [
    (
        r"layer '1' \(BatchNorm1d\) keeps statistics of whole batches, .*"
        r"fedmix.models.group_norm\(module\) puts nn.GroupNorm in its place",
        nn.Sequential(FIRST, nn.BatchNorm1d(3)),
    ),
    (r"it \(BatchNorm2d\) keeps statistics", nn.BatchNorm2d(3)),
    (
        r"layer '0' \(LSTM\) has no forward-mode derivative; use fedmix.models.LSTM",
        nn.Sequential(nn.LSTM(4, 3)),
    ),
    (r"layer '0' \(GRU\) has no forward-mode", nn.Sequential(nn.GRU(4, 3))),
    (
        r"layer '1' \(AlphaDropout\) draws random numbers of its own; use nn.Dropout",
        nn.Sequential(FIRST, nn.AlphaDropout()),
    ),
    (r"draws random numbers by itself.*use nn.Dropout layers instead", ByItself()),
    (
        r"changes its buffer 'seen' when it is called, which clients cannot share",
        Stateful(replaced),
    ),
    (r"changes its buffer 'seen' when it is called", Stateful(in_place)),
    (r"gives two outputs for the same inputs", Stateful(counted)),
    (r"output for a sample depends on the other samples of its batch", Stateful(centred)),
    (r"output holds NaN or infinity before any training; look at its first weights", unset()),
    (
        r"its weights are bfloat16 and must be float32, as module.float\(\) makes them",
        nn.Linear(4, 3).bfloat16(),
    ),
    (
        r"output has shape \(2, 5\) but the labels \(2, 3\); give its last layer 3 outputs",
        nn.Linear(4, 5),
    ),
    (r"does not take inputs of shape \(2, 4\)", nn.Linear(7, 3)),
    (r"does not take inputs of shape \(2, 4\)", nn.Conv2d(1, 3, 3)),
    (
        r"does not take inputs of shape \(2, 4\)",
        nn.Sequential(FIRST, nn.GroupNorm(1, 1)),
    ),  # whose one weight fits anything
    (
        r"does not take inputs of shape \(2, 4\): LayerNorm\(\(4,\)\) got",
        nn.Sequential(FIRST, nn.LayerNorm(4, elementwise_affine=False)),
    ),
    (r"does not take inputs of shape \(2, 4\)", nn.Sequential(FIRST, nn.LayerNorm(1))),
    (r"does not take inputs of shape \(2, 4\): ValueError", Silent(4, 3)),
    (r"returns a tuple", Pair()),
    (
        r"layer '0' \(LazyLinear\) has no weights yet; call the module once",
        nn.Sequential(nn.LazyLinear(3)),
    ),
    (
        r"it \(Linear\) has no values, since it is on the device 'meta'; make .* on the CPU",
        nn.Linear(4, 3, device="meta"),
    ),
    (r"keeps weights in 'held', .*; make it an nn.ModuleList", Listed([nn.Linear(4, 4)])),
    (r"keeps weights in '0.held'", nn.Sequential(Listed({"a": nn.Linear(4, 4)}))),
    (r"keeps weights in 'held'", Listed((1, nn.Parameter(torch.zeros(2))))),
    (r"cannot be copied: Only Tensors created explicitly", pruned()),
    (r"it \(Linear\) has int64 parameters, which cannot be averaged", with_parameter(torch.int64)),
    (r"has complex64 parameters, which cannot be averaged", with_parameter(torch.complex64)),
    (
        r"layer 'table' \(Embedding\) changes its weights whenever it is called; leave max_norm",
        Looked(nn.Embedding(9, 3, max_norm=1.0)),
    ),
    (
        r"layer 'table' \(Embedding\) has sparse gradients, .*; leave sparse out",
        Looked(nn.Embedding(9, 3, sparse=True)),
    ),
    (r"has no parameters that can be trained", nn.Linear(4, 3).requires_grad_(False)),
    (
        r"the model is the class Pair; give an instance of an nn.Module: Net\(\) instead of Net",
        Pair,
    ),  # type: ignore[list-item]
    (r"the model is the function arrays; give an instance", arrays),  # type: ignore[list-item]
    (r"the model is of type dict; give an instance", {}),  # type: ignore[list-item]
]


@pytest.mark.parametrize(
    ("words", "module"),
    REFUSED,
    ids=[type(m).__name__ + str(i) for i, (_, m) in enumerate(REFUSED)],
)
def test_models_that_cannot_be_trained_are_refused(words: str, module: nn.Module) -> None:
    with pytest.raises(BadInput, match=words) as caught:
        Federation(module, arrays(), Supervised(), Training(2))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("held", [[nn.Linear(4, 4).requires_grad_(False)], [torch.ones(2)], (1,)])
def test_a_list_of_what_is_not_trained_is_taken(held: object) -> None:
    Federation(Listed(held), arrays(), Supervised(), Training(2))


def test_outputs_that_are_probabilities_are_warned_of() -> None:
    """A softmax before cross-entropy makes slopes vanish; its logarithm changes nothing."""
    softmax = nn.Sequential(nn.Linear(4, 3), nn.Softmax(1))
    with pytest.warns(FedmixWarning, match="are probabilities, .*; leave out the softmax") as told:
        Federation(softmax, arrays(), Supervised(), Training(2))
    assert [one.filename for one in told] == [__file__]
    # warnings are errors in tests
    Federation(
        nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(1)), arrays(), Supervised(), Training(2)
    )
    Federation(softmax, arrays(), Supervised(), Training(2), loss=squared_error)


NORMS: list[tuple[nn.Module, tuple[int, ...]]] = [
    (nn.GroupNorm(3, 6), (4, 6)),
    (nn.GroupNorm(2, 6, eps=0.1), (4, 6, 3, 2)),
    (nn.GroupNorm(6, 6, affine=False), (4, 6, 5)),
    (nn.LayerNorm(6), (4, 5, 6)),
    (nn.LayerNorm([5, 6], eps=0.1, bias=False), (4, 5, 6)),
    (nn.LayerNorm(6, elementwise_affine=False), (4, 6)),
]


@pytest.mark.parametrize(("norm", "shape"), NORMS, ids=[str(norm) for norm, _ in NORMS])
def test_normalisation_is_what_it_is_in_pytorch(norm: nn.Module, shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    for p in norm.parameters():
        nn.init.normal_(p, generator=generator)
    x = torch.randn(shape, generator=generator)
    model = Model(nn.Sequential(copy.deepcopy(norm)))
    assert type(model.module[0]) is not type(norm)  # type: ignore[index]
    torch.testing.assert_close(model(model.init(), x, torch.tensor(0)), norm(x))
