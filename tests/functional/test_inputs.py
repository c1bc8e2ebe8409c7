"""What is refused, in one sentence each."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedmix import BadInput
from fedmix.functional import fedmix_loss, localmix_loss, naivemix_loss, prox
from tests.functional.textbook import FLAT, Batch, Function, dense, made

NAN = float("nan")


def given(**changes: Any) -> dict[str, Any]:
    batch = Batch(FLAT)
    names = ("x", "y", "mean_x", "mean_y")
    return dict(zip(names, batch.tensors(), strict=True)) | {"lam": 0.3} | changes


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "no module": ({"net": F.relu}, "`net` is of type builtin_function_or_method|`net` is the fun"),
    "an array": ({"x": [[1.0]]}, "`x` is of type list; give a tensor"),
    "token ids": ({"x": torch.ones(6, 3, dtype=torch.long)}, "x is int64, which cannot be mixed"),
    "fewer targets": ({"y": torch.zeros(5, dtype=torch.long)}, "y \\(5,\\); give one target for"),
    "no samples": ({"x": torch.ones(0, 3), "y": torch.ones(0)}, "one sample at least"),
    "another device": ({"y": torch.zeros(6, device="meta")}, "y is on meta and x on cpu"),
    "ratio": ({"lam": 1.5}, "lam=1.5 is outside"),
    "means of another shape": ({"mean_x": torch.ones(1, 4)}, "mean_x has shape \\(1, 4\\) for in"),
    "two means": ({"mean_x": torch.ones(2, 3)}, "one mean for the batch, or one for each sample"),
    "no leading one": ({"mean_x": torch.ones(3)}, "mean_x has shape \\(3,\\)"),
    "whole means": ({"mean_x": torch.ones(1, 3).int()}, "mean_x is int32"),
    "labels of the means": ({"mean_y": torch.ones(2, 3)}, "one label vector for each"),
    "width of the means": (
        {"mean_y": torch.tensor([[0.5, 0.5]])},
        "label vectors have shape \\(1, 2\\) for outputs of shape \\(6, 3\\).*classes=3",
    ),
    "not a number": ({"mean_x": torch.full((1, 3), NAN)}, "these means hold NaN or infinity"),
    "label too high": ({"y": torch.tensor([0, 1, 2, 3, 0, 0])}, "y holds labels outside 0..2"),
    "label too low": ({"y": torch.tensor([0, 1, 2, -1, 0, 0])}, "y holds labels outside 0..2"),
    "flags": ({"y": torch.ones(6).bool()}, "y of type bool"),
    "no shares": ({"y": torch.ones(6, 3)}, "y must not be negative and must add up to 1"),
    "not a share": ({"mean_y": torch.tensor([[2.0, 0, 0]])}, "must add up to 1 in cross_entropy"),
    "negative share": ({"mean_y": torch.tensor([[1.5, -0.5, 0]])}, "must not be negative"),
    "targets of a regression": ({"y": torch.rand(6)}, "y has shape \\(6,\\) for outputs"),
    "name of a loss": ({"loss": "hinge"}, "loss='hinge' is unknown; choose one of cross_entropy"),
    "class of a loss": ({"loss": nn.CrossEntropyLoss}, "`loss` is the class CrossEntropyLoss"),
    "loss of labels": (
        {"loss": nn.NLLLoss(reduction="none")},
        "the loss NLLLoss fails .*shape, here \\(6, 3\\): label vectors, not labels",
    ),
    "label vectors of integers": (
        {"y": torch.eye(3).repeat(2, 1).long()},
        "y of type int64 and shape \\(6, 3\\) .* or floating-point vectors",
    ),
    "no loss": ({"loss": 3}, "`loss` is of type int; give a function"),
    "mean loss": ({"loss": nn.CrossEntropyLoss()}, "gives \\(\\) for 6 samples.*reduction='none'"),
    "loss by class": ({"loss": nn.BCEWithLogitsLoss(reduction="none")}, "gives \\(6, 3\\) for 6 s"),
    "bent loss": (
        {"loss": lambda z, y: ((z - y) ** 2).sum(1)},
        "not linear in its target.*squared_error",
    ),
    "bent loss of one output": (
        {
            "net": nn.Linear(3, 1).double(),
            "y": torch.rand(6),
            "mean_y": torch.rand(1, 1),
            "loss": lambda z, y: F.huber_loss(z, y, reduction="none")[:, 0],
        },
        "not linear in its target",
    ),
    "whole numbers for one output": (
        {"net": nn.Linear(3, 1).double()},
        "y has whole numbers and the model one output",
    ),
    "rows that are missing": (
        {"forward": lambda net, x: net(x)[:4]},
        "outputs of shape \\(4, 3\\) for 6 samples; give one row for each",
    ),
    "a value for the batch": ({"forward": lambda net, x: net(x).mean()}, "shape \\(\\) for 6 samp"),
    "several outputs": ({"net": nn.LSTM(3, 3).double()}, "returns a tuple; pick the tensor"),
    "no function": ({"forward": 3}, "`forward` is of type int"),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("loss", [fedmix_loss, naivemix_loss])
def test_refused(name: str, loss: Any) -> None:
    changes, said = CASES[name]
    changes = dict(changes)
    net = changes.pop("net", None) or made("mlp")
    with pytest.raises(BadInput, match=said) as error:
        loss(net, **given(**changes))
    assert "\n" not in str(error.value)


def test_what_only_fedmix_refuses() -> None:
    rounded = dense(Function(torch.round)).double()[1:]  # whole numbers, as x.long() makes them
    with pytest.raises(BadInput, match="scale='algorithm' speaks of the loss expansion"):
        fedmix_loss(made("mlp"), **given(scale="algorithm", expand="logits"))
    ids = nn.Sequential(Function(lambda x: x.long().double()), rounded)
    batch = given(x=torch.ones(6, 8).double(), mean_x=torch.ones(1, 8).double())
    with pytest.raises(BadInput, match="no derivative in its inputs, as if these were token ids"):
        fedmix_loss(ids, **batch)
    with pytest.raises(BadInput, match="lazy layers, whose weights are not there yet; call it"):
        fedmix_loss(nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d()).double(), **given())
    with torch.inference_mode(), pytest.raises(BadInput, match="inference_mode forbids"):
        fedmix_loss(made("mlp"), **given())
    far = dense(Function(lambda x: torch.cdist(x, x + 1)), width=6).double()
    with pytest.raises(BadInput, match=r"PyTorch has none .*cdist.*use naivemix_loss"):
        fedmix_loss(far, **given())


def test_an_error_of_the_module_is_its_own() -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        fedmix_loss(nn.Linear(4, 3).double(), **given())


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.uint16, torch.int64])
def test_labels_may_be_whole_numbers_of_any_size(dtype: torch.dtype) -> None:
    net, values = made("mlp"), given()
    soft = values | {"y": F.one_hot(values["y"], 3).double()}
    expected = fedmix_loss(net, **soft)
    values["y"] = values["y"].to(dtype)
    torch.testing.assert_close(fedmix_loss(net, **values), expected)


def test_outputs_without_a_width() -> None:
    """(B,) outputs and (B,) targets are not broadcast against each other."""
    flat = nn.Sequential(nn.Linear(3, 1), Function(lambda z: z[:, 0])).double()
    values = given(y=torch.rand(6).double(), mean_y=torch.rand(1, 1).double())
    ours = fedmix_loss(flat, **values, loss="squared_error")
    theirs = fedmix_loss(flat[0], **values, loss="squared_error")
    torch.testing.assert_close(ours, theirs)


def test_partners() -> None:
    net, values = made("mlp"), given()
    x, y = values["x"], values["y"]
    for other, said in (
        ((x, None), "go together"),
        ((x[:3], y[:3]), "give one partner for each sample"),
        ((x.long(), y), "partner_x is int64"),
    ):
        with pytest.raises(BadInput, match=said):
            localmix_loss(net, x, y, *other, lam=0.1)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "give either alpha"),
        ({"alpha": -1.0}, "must be positive"),
    ]
    for ratios, said in wrong:
        with pytest.raises(BadInput, match=said):
            localmix_loss(net, x, y, **ratios)
        with pytest.raises(BadInput, match=said):
            naivemix_loss(net, x, y, values["mean_x"], values["mean_y"], **ratios)


def test_anchors() -> None:
    net = made("mlp")
    copied = copy.deepcopy(net.state_dict())
    wrong: list[tuple[Any, str]] = [
        (net.state_dict(), "the anchor is the net's own weights, which move with it"),
        (dict(net.named_parameters()), "the net's own weights"),
        ({f"module.{name}": p for name, p in copied.items()}, "has no weight '0.weight'"),
        (copied | {"0.bias": torch.zeros(3)}, "has no weight '0.bias' of shape \\(8,\\)"),
        (net, "give the weights by name"),
    ]
    for anchor, said in wrong:
        with pytest.raises(BadInput, match=said):
            prox(net, anchor, 0.1)
    with pytest.raises(BadInput, match="mu=-1"):
        prox(net, copied, -1)
    with pytest.raises(BadInput, match=r"`net` is the class Linear; give an nn\.Module"):
        prox(nn.Linear, copied, 0.1)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="no weight that is trained"):
        prox(copy.deepcopy(net).requires_grad_(False), copied, 0.1)
    value: Tensor = prox(net, {name: p + 2.0 for name, p in copied.items()}, 0.5)
    count = sum(p.numel() for p in net.parameters())
    assert float(value.detach()) == pytest.approx(0.25 * 4 * count)
