"""Attention with dropout, and embeddings of one-hot vectors, beside PyTorch's own."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from fedmix import BadInput, Federation, FedMix, Supervised, Training
from fedmix.core.rng import keep_mask
from fedmix.models import Model
from fedmix.models.layers import Attention, KeyedDropout, Lookup
from tests.synthetic import arrays

KEY = torch.tensor(123456789)


class Asks(nn.Module):
    """Calls attention as `how` says, and returns what it gives."""

    def __init__(self, layer: nn.MultiheadAttention, **how: Tensor | bool | None) -> None:
        super().__init__()
        self.layer, self.how = layer, how

    def forward(self, x: Tensor) -> Tensor:
        memory = x[..., : self.layer.kdim]
        out, weights = self.layer(x, memory, memory, **self.how)
        return out if weights is None else torch.cat([out.flatten(), weights.flatten()])


MASKS: dict[str, dict[str, Tensor | bool | None]] = {
    "plain": {},
    "no weights": {"need_weights": False},
    "weights by head": {"average_attn_weights": False},
    "later ones hidden": {"attn_mask": torch.ones(4, 4, dtype=torch.bool).triu(1)},
    "numbers added": {"attn_mask": torch.linspace(-2, 2, 16).view(4, 4)},
    "by sample and head": {"attn_mask": torch.linspace(-2, 2, 96).view(6, 4, 4)},
    "padding": {"key_padding_mask": torch.tensor([[False] * 4, [False] * 3 + [True], [False] * 4])},
}


@pytest.mark.parametrize("how", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("kind", [{}, {"bias": False}, {"kdim": 4, "vdim": 4}], ids=str)
def test_without_a_drop_it_is_pytorchs_attention(
    how: dict[str, Tensor | bool | None], kind: dict[str, int]
) -> None:
    """At a rate that drops nothing in so few numbers: 1e-9 of 2^32 is 4."""
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(6, 2, dropout=1e-9, batch_first=True, **kind)
    x, module = torch.randn(3, 4, 6), Asks(layer, **how)
    model = Model(module)
    assert type(model.module.layer) is Attention
    expected = copy.deepcopy(module).eval()(x)
    torch.testing.assert_close(model(model.init(), x, KEY), expected, rtol=1e-5, atol=1e-6)


def test_time_first_is_pytorchs_too() -> None:
    torch.manual_seed(0)
    module = Asks(nn.MultiheadAttention(6, 2, dropout=1e-9))
    x, model = torch.randn(4, 3, 6), Model(module)
    torch.testing.assert_close(model(model.init(), x, KEY), module.eval()(x), rtol=1e-5, atol=1e-6)


def test_what_is_dropped_is_the_hash_of_the_key() -> None:
    """One head of width 1 whose projections are 1: the weights are those of a softmax by hand."""
    layer = nn.MultiheadAttention(1, 1, dropout=0.5, batch_first=True)
    with torch.no_grad():
        for p in layer.parameters():
            p.fill_(1.0 if p.ndim > 1 else 0.0)
    model, x = Model(Asks(layer, need_weights=False)), torch.tensor([[[0.0], [math.log(3)]]])
    kept = keep_mask(KEY, 0, (1, 1, 2, 2), 0.5)[0, 0]
    share = 3 ** math.log(3) / (1 + 3 ** math.log(3))  # exp(ln 3 · ln 3) beside exp(0)
    rows = torch.tensor([[0.5, 0.5], [1 - share, share]]) * kept * 2
    expected = rows @ torch.tensor([[0.0], [math.log(3)]])
    torch.testing.assert_close(model(model.init(), x, KEY)[0], expected)
    assert not torch.equal(kept, keep_mask(KEY + 1, 0, (1, 1, 2, 2), 0.5)[0, 0])


def test_two_layers_and_their_other_dropouts_have_masks_of_their_own() -> None:
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.3, batch_first=True)
    model = Model(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    sites = [part.site for part in model.module.modules() if isinstance(part, KeyedDropout)]
    assert sorted(sites) == list(range(8))  # three beside each attention
    x, params = torch.randn(2, 3, 4), model.init()
    assert torch.equal(model(params, x, KEY), model(params, x, KEY))
    assert not torch.equal(model(params, x, KEY), model(params, x, KEY + 1))


@pytest.mark.parametrize("odd", [{"add_bias_kv": True}, {"add_zero_attn": True}])
def test_other_attention_with_dropout_is_named(odd: dict[str, bool]) -> None:
    layer = nn.MultiheadAttention(4, 2, dropout=0.1, batch_first=True, **odd)
    said = r"layer 'layer' \(MultiheadAttention\) drops attention by random numbers of its own; set"
    with pytest.raises(BadInput, match=said):
        Model(Asks(layer))
    layer.dropout = 0.0
    Model(Asks(layer))


# Embeddings


@pytest.mark.parametrize("padding", [None, 2])
def test_an_embedding_takes_one_hot_vectors_and_codes(padding: int | None) -> None:
    """With the same gradients; the row of padding has none."""
    torch.manual_seed(0)
    inner = nn.Embedding(5, 3, padding_idx=padding)
    module = nn.Sequential(inner, nn.Flatten(), nn.Linear(6, 2))
    model, codes = Model(module), torch.tensor([[0, 2], [4, 2]])
    assert isinstance(model.module, nn.Sequential)
    assert type(model.module[0]) is Lookup
    assert type(module[0]) is nn.Embedding
    vectors, slopes = nn.functional.one_hot(codes, 5).float(), []
    for x in (codes, vectors):
        params = {n: p.requires_grad_() for n, p in model.init().items()}
        slopes.append(torch.autograd.grad(model(params, x, KEY).square().sum(), params["0.weight"]))
        torch.testing.assert_close(model(params, x), module(codes))
    torch.testing.assert_close(slopes[0], slopes[1])
    half = model(model.init(), vectors.mean(0, keepdim=True))  # half of each
    middle = inner.weight[[0, 4]].mean(0), inner.weight[2]
    torch.testing.assert_close(half[0], module[2](torch.cat(middle)))


def test_attention_with_dropout_trains_as_it_is() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(2, 1, 8, dropout=0.2, batch_first=True)
            self.last = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.last(self.layer(x.view(-1, 2, 2)).flatten(1))
            return out

    for objective in (Supervised(), FedMix(0.1, expand="logits")):
        assert [r.round for r in Federation(Net(), arrays(), objective, Training(2)).run(1)] == [1]
