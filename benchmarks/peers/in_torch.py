"""The workload in PyTorch: fedmix's modules with common weights, and the plain local update."""

from collections.abc import Iterable
from functools import partial

import torch
from measure import Job
from torch import Tensor, nn
from torch.nn import functional as F
from workload import Array, Workload

from fedmix import models
from fedmix.bench.plain import PlainCharLSTM

# PyTorch's own LSTM is what one would use; fedmix needs one that has a forward derivative
MODELS = {
    "lenet": models.lenet,
    "vgg": partial(models.vgg, dropout=0.0),
    "lstm": PlainCharLSTM,
}


def module(work: Workload, device: str = "cpu", *, ours: bool = False) -> nn.Module:
    """The model with the common weights; `ours` asks for fedmix's LSTM."""
    make = models.charlstm if ours and work.name == "lstm" else MODELS[work.name]
    net: nn.Module = make(classes=work.classes)
    with torch.no_grad():
        for parameter, array in zip(trained(net), work.initial(), strict=True):
            parameter.copy_(torch.from_numpy(array))
    return net.to(device)


def trained(net: nn.Module) -> list[nn.Parameter]:
    return [p for p in net.parameters() if p.requires_grad]


def set_threads(job: Job) -> None:
    """Set the number of threads, unless it is to stay as it is."""
    if job.threads:
        torch.set_num_threads(job.threads)


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
