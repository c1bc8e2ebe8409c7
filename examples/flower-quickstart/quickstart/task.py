"""The model, the data, and the training loop."""

from functools import cache

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

CLASSES = 10


class Net(nn.Module):
    """A small convolutional network for pictures of 8 by 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 16, 3, padding=1)
        self.hidden = nn.Linear(16 * 4 * 4, 64)
        self.out = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv(x)), 2)
        return self.out(F.relu(self.hidden(x.flatten(1))))


@cache
def digits() -> tuple[Tensor, Tensor]:
    """All pictures, in [0, 1], and their digits."""
    found = load_digits()
    x = torch.from_numpy(found.images).float().div(16).unsqueeze(1)
    return x, torch.from_numpy(found.target)


def load_test() -> tuple[Tensor, Tensor]:
    """The pictures that the server tests on: every fifth."""
    x, y = digits()
    return x[::5], y[::5]


def load_data(partition: int, partitions: int, seed: int) -> tuple[Tensor, Tensor]:
    """The pictures of one client: two parts of the others sorted by digit, so few digits."""
    x, y = digits()
    mine = np.flatnonzero(np.arange(len(y)) % 5)
    mine = mine[np.argsort(y.numpy()[mine], kind="stable")]
    order = np.random.default_rng(seed).permutation(2 * partitions)
    parts = np.array_split(mine, 2 * partitions)
    rows = np.concatenate([parts[i] for i in order[2 * partition : 2 * partition + 2]])
    return x[rows], y[rows]


def train(net: nn.Module, x: Tensor, y: Tensor, epochs: int, lr: float) -> float:
    """Train on a client's pictures; return the mean loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr)
    losses = []
    for _ in range(epochs):
        for bx, by in DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True):
            loss = F.cross_entropy(net(bx), by)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return float(np.mean(losses))


def test(net: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Return the loss and the accuracy."""
    with torch.no_grad():
        outputs = net(x)
    loss = float(F.cross_entropy(outputs, y))
    return loss, float((outputs.argmax(1) == y).float().mean())
