"""Layers that PyTorch does not offer: keyed dropout, a linear embedding, an LSTM with forward-mode derivatives."""

import math

import torch
from torch import Tensor, nn

from fedmix.rng import keep_mask


class KeyedDropout(nn.Module):
    """Dropout whose mask is a hash of (`key`, `site`, position). The caller sets the buffer `key` for every step."""

    key: Tensor

    def __init__(self, p: float, site: int = 0, whole_channels: bool = False) -> None:
        super().__init__()
        self.p, self.site, self.whole_channels = p, site, whole_channels
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        shape = (*x.shape[:2], *[1] * (x.ndim - 2)) if self.whole_channels else tuple(x.shape)
        scale = 1 / (1 - self.p) if self.p < 1 else 0.0
        return x * keep_mask(self.key, self.site, shape, self.p).to(x.dtype) * scale


class Embedding(nn.Module):
    """Embeds one-hot (or averaged one-hot) vectors, (..., size) to (..., width), with `nn.Embedding`'s initialisation."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, width).normal_())

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class LSTM(nn.Module):
    """One LSTM layer over (B, T, in) from explicit cells: `nn.LSTM` (with one bias) that has a forward-mode derivative.

    i, f, o = σ(…), g = tanh(…), c ← f·c + i·g, h ← o·tanh(c), with all four gates from one product per step.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(hidden)
        self.hidden = hidden
        self.input_weight = nn.Parameter(torch.empty(4 * hidden, inputs).uniform_(-bound, bound))
        self.hidden_weight = nn.Parameter(torch.empty(4 * hidden, hidden).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(4 * hidden).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        projected = x @ self.input_weight.T + self.bias
        h = c = torch.zeros_like(projected[:, 0, : self.hidden])
        outputs = []
        for gates in projected.unbind(1):
            i, f, g, o = (gates + h @ self.hidden_weight.T).chunk(4, -1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            outputs.append(h)
        return torch.stack(outputs, 1)


class LastStep(nn.Module):
    """The last time step of (B, T, d)."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, -1]
