"""A model cut in two at a layer: both parts together are the whole, and cuts that cannot be made
are refused.
"""

import pytest
import torch
from torch import Tensor, nn

from fedmix import BadInput, Federation, FedMix, Hidden, Training, models
from fedmix.models import Model
from tests.models.test_own_modules import Residual
from tests.synthetic import SHAPES, arrays

KEY = torch.tensor(12345)


def inputs(kind: str, n: int = 3, seed: int = 0) -> Tensor:
    return torch.randn(n, *SHAPES[kind][1], generator=torch.Generator().manual_seed(seed))


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
        assert torch.equal(
            model.tail(layer)(params, model.head(layer)(params, x)), model(params, x)
        ), layer
        expected = {f"{i}.{n}" for i in (0, 2, 4) if i >= layer for n in ("weight", "bias")}
        assert set(model.tail(layer).names) == expected


# Refusals


@pytest.mark.parametrize(
    ("words", "module", "layer"),
    [
        (
            "a Residual cannot start from layer 1; hidden-state mixing needs an nn.Sequential",
            Residual(),
            1,
        ),
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
    with pytest.raises(
        BadInput, match=r"cannot be cut at layer 1: '2.weight' is tied to a weight before the cut"
    ):
        Federation(
            nn.Sequential(first, nn.Tanh(), last),
            arrays(classes=4),
            Hidden(FedMix(0.1), 1),
            Training(2),
        )


def test_layer_zero_is_no_hidden_state() -> None:
    with pytest.raises(BadInput, match="hidden states exist after layer 1 or later"):
        Hidden(FedMix(0.1), 0)
    model = Model(models.mlp(4, 3))
    for layer in (0, -1):
        with pytest.raises(BadInput, match=f"layer {layer} is not inside this model"):
            model.head(layer)
