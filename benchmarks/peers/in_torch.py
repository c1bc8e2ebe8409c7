"""The workload in PyTorch: fedmix's modules with common weights, and the plain local update."""

from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from workload import Array, Workload

from fedmix import models


def module(work: Workload, device: str = "cpu") -> nn.Module:
    net = {"lenet": models.lenet, "vgg": partial(models.vgg, dropout=0.0)}[work.name](
        classes=work.classes
    )
    with torch.no_grad():
        for parameter, array in zip(net.parameters(), work.initial(), strict=True):
            parameter.copy_(torch.from_numpy(array))
    return net.to(device)


def tensors(work: Workload, device: str = "cpu") -> tuple[Tensor, Tensor]:
    x, y = work.data()
    return torch.from_numpy(x).to(device), torch.from_numpy(y).to(device)


def arrays(parameters: Iterable[Tensor]) -> list[Array]:
    return [p.detach().cpu().numpy() for p in parameters]


def train(net: nn.Module, x: Tensor, y: Tensor, rows: Tensor, work: Workload) -> None:
    """Run a FedAvg client's local update in place: SGD with momentum on cross entropy."""
    optimiser = torch.optim.SGD(net.parameters(), lr=work.lr, momentum=work.momentum)
    for batch in rows:
        optimiser.zero_grad()
        F.cross_entropy(net(x[batch]), y[batch]).backward()
        optimiser.step()
