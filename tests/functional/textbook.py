"""FedMix's loss as written in the paper, by reverse mode alone, and modules of many kinds."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FLAT, IMAGE, TEXT = (6, 3), (6, 2, 8, 8), (6, 5, 4)
CLASSES = 3


class Batch:
    """A batch of random samples in float64, with one mean for all or one each."""

    def __init__(self, shape: tuple[int, ...], means: int = 1) -> None:
        drawn = torch.Generator().manual_seed(1)
        self.x = torch.randn(shape, generator=drawn, dtype=torch.float64)
        self.y = torch.randint(CLASSES, shape[:1], generator=drawn)
        self.mean_x = torch.rand(means, *shape[1:], generator=drawn, dtype=torch.float64)
        self.mean_y = torch.rand(means, CLASSES, generator=drawn, dtype=torch.float64).softmax(1)

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.x, self.y, self.mean_x, self.mean_y


def fedmix(net: Callable[[Tensor], Tensor], batch: Batch, lam: float, expand: str) -> Tensor:
    """ℓ1 + ℓ2 + ℓ3 by double backward; for logits, row by row of the Jacobian."""
    x = ((1 - lam) * batch.x).requires_grad_()
    z, y = net(x), F.one_hot(batch.y, CLASSES).double()
    if expand == "loss":
        own = -(y * z.log_softmax(1)).sum(1).mean()
        other = -(batch.mean_y * z.log_softmax(1)).sum(1).mean()
        # the gradient of a mean already holds 1/B, so that ℓ3 is the sum over all elements
        (slope,) = torch.autograd.grad(own, x, create_graph=True)
        return (1 - lam) * own + lam * other + lam * (slope * batch.mean_x).sum()
    rows = [torch.autograd.grad(value, x, create_graph=True)[0] for value in z.flatten()]
    along = torch.stack([(row * batch.mean_x).sum() for row in rows]).view_as(z)
    mixed = (1 - lam) * y + lam * batch.mean_y
    return -(mixed * (z + lam * along).log_softmax(1)).sum(1).mean()


class LastStep(nn.Module):
    """A recurrent layer, of which the last output counts."""

    def __init__(self, kind: Any = nn.LSTM) -> None:
        super().__init__()
        self.layer, self.last = kind(4, 5, batch_first=True), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.layer(x)[0][:, -1])
        return out


class Cube(torch.autograd.Function):
    """x³, without a forward mode."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        square: Tensor = 3 * x * x * grad
        return square


class Function(nn.Module):
    """A function as a layer."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def dense(*between: nn.Module, width: int = 8) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 8), *between, nn.Linear(width, CLASSES))


def image(*between: nn.Module) -> nn.Sequential:
    last = (nn.AvgPool2d(2), nn.Flatten(), nn.Linear(36, CLASSES))
    return nn.Sequential(nn.Conv2d(2, 4, 3), *between, *last)


def transformer() -> nn.Sequential:
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.2, batch_first=True)
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(20, CLASSES))


FORWARD, OUT_OF_PLACE, DOUBLE = "forward mode", "forward mode, out of place", "double backward"
KINDS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "mlp": (lambda: dense(nn.ReLU()), FLAT, FORWARD),
    "cnn": (lambda: image(nn.ReLU(), nn.MaxPool2d(1)), IMAGE, FORWARD),
    "batch norm": (lambda: image(nn.BatchNorm2d(4), nn.ReLU()), IMAGE, FORWARD),
    "batch norm, cumulative": (
        lambda: dense(nn.BatchNorm1d(8, momentum=None), nn.Tanh()), FLAT, FORWARD,
    ),
    "batch norm, evaluating": (lambda: image(nn.BatchNorm2d(4).eval(), nn.ReLU()), IMAGE, FORWARD),
    "dropout": (lambda: dense(nn.Tanh(), nn.Dropout(0.4)), FLAT, FORWARD),
    "layer norm": (lambda: dense(nn.LayerNorm(8), nn.GELU()), FLAT, FORWARD),
    "group norm": (lambda: image(nn.GroupNorm(2, 4), nn.SiLU()), IMAGE, FORWARD),
    "instance norm": (
        lambda: image(nn.InstanceNorm2d(4, affine=True, track_running_stats=True), nn.SiLU()),
        IMAGE, FORWARD,
    ),
    "rms norm": (lambda: dense(nn.RMSNorm(8), nn.Mish()), FLAT, FORWARD),
    "weight norm": (
        lambda: dense(nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)), nn.ELU()),
        FLAT, FORWARD,
    ),
    "softmax": (lambda: dense(nn.Softmax(1)), FLAT, OUT_OF_PLACE),
    "transformer": (transformer, TEXT, OUT_OF_PLACE),
    "embedding of one-hot": (
        lambda: nn.Sequential(
            nn.Linear(4, 3, bias=False), nn.Conv1d(5, 4, 1), nn.ReLU(), nn.Flatten(),
            nn.Linear(12, CLASSES),
        ),
        TEXT, FORWARD,
    ),
    "gru": (lambda: LastStep(nn.GRU), TEXT, FORWARD),
    "gated unit": (lambda: dense(nn.GLU(), width=4), FLAT, DOUBLE),
    "own function": (lambda: dense(Function(Cube.apply)), FLAT, DOUBLE),
}  # fmt: skip


def made(kind: str) -> nn.Module:
    """A module of this kind in float64, in training mode but for what was put in evaluation."""
    torch.manual_seed(0)
    return KINDS[kind][0]().double()
