"""pfl: federated averaging on its SimulatedBackend with PyTorch.

Under torchrun, its workers share the clients of a round.
"""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from in_torch import arrays, module, set_threads, tensors, trained
from measure import Job, job
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDatasetBase
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops.selector import get_framework_module
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional as F
from workload import Workload


class Net(nn.Module):
    """A module with the methods that pfl needs: `loss` and `metrics`."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.net(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        with torch.no_grad():
            return {"loss": Weighted(self.loss(x, y).item() * len(x), len(x))}


class Client(PyTorchTensorDataset):
    """A client's tensors; each training epoch returns them in another order."""

    def __init__(self, x: Tensor, y: Tensor, epochs: Tensor) -> None:
        super().__init__((x, y))
        self.epochs = iter(epochs)

    def iter(self, batch_size: int) -> Iterator[list[Tensor]]:
        if batch_size == len(self):  # pfl evaluates each client as a whole in its first round
            yield list(self.raw_data)
            return
        for rows in next(self.epochs):
            yield [t[rows] for t in self.raw_data]


class Clients(FederatedDatasetBase):
    """The drawn clients of each round, divided among the workers."""

    def __init__(self, work: Workload, device: str) -> None:
        super().__init__()
        self.work, self.device, self.round = work, device, 0
        self.x, self.y = tensors(work, device)

    def __next__(self) -> tuple[Client, int]:
        raise NotImplementedError("clients are drawn by the round")

    def get_cohort(self, cohort_size: int) -> Iterator[tuple[Client, int]]:
        work, among = self.work, get_framework_module().distributed
        for k in work.chosen(self.round)[:cohort_size][among.global_rank :: among.world_size]:
            epochs = torch.from_numpy(work.rows(self.round, k)).reshape(work.epochs, -1, work.batch)
            yield Client(self.x[k], self.y[k], epochs.to(self.device)), 0
        self.round += 1


class Clock(TrainingProcessCallback):
    def __init__(self, job: Job, net: Net) -> None:
        self.job, self.net = job, net

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:  # noqa: ARG002 - the callback's signature
        self.job.start()
        return Metrics()

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
        if self.job.device == "cuda":
            torch.cuda.synchronize()
        self.job.tick(lambda: arrays(trained(self.net)))
        return False, Metrics()


def main(job: Job) -> None:
    os.environ["PFL_PYTORCH_DEVICE"] = job.device
    set_threads(job)
    np.random.seed(0)  # noqa: NPY002 - the generator that pfl takes its own seeds from
    work = job.workload
    net, clients = Net(module(work, job.device)), Clients(work, job.device)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=job.total,
            evaluation_frequency=job.total + 1,
            train_cohort_size=work.per_round,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=clients, val_data=clients),
        PyTorchModel(
            net,
            lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=work.momentum),
            torch.optim.SGD(net.parameters(), lr=1.0),
        ),
        NNTrainHyperParams(
            local_batch_size=work.batch, local_num_epochs=work.epochs, local_learning_rate=work.lr
        ),
        callbacks=[Clock(job, net)],
    )
    if get_framework_module().distributed.global_rank == 0:
        job.save("pfl", arrays(trained(net)), ["pfl", "torch", "numpy"])


if __name__ == "__main__":
    main(job())
