"""fluke: its FedAVG in Python, one client after another, as in its tutorials."""

from collections.abc import Iterator, Sequence

import torch

if not torch.cuda.is_available():
    # torchvision as pip installs it finds its own operators only beside a PyTorch for CUDA, and
    # cannot be imported without; fluke imports it and calls none of them
    OPERATORS = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        OPERATORS.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.client import Client
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.server import Server
from fluke.utils import FederationObserver
from in_torch import arrays, module, set_threads, tensors, trained
from measure import Job, job
from torch import Tensor, nn
from workload import Workload


class Batches(FastDataLoader):
    """A client's loader; each pass over it returns the drawn batches of an epoch."""

    def __init__(self, work: Workload, client: int, x: Tensor, y: Tensor) -> None:
        super().__init__(x, y, num_labels=work.classes, batch_size=work.batch)
        self.work, self.client, self.epochs = work, client, iter(())

    def draw(self, round_: int) -> None:
        rows = torch.from_numpy(self.work.rows(round_, self.client))
        self.epochs = iter(rows.reshape(self.work.epochs, -1, self.work.batch))

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        for rows in next(self.epochs):
            yield tuple(t[rows] for t in self.tensors)


class Drawn(Server):
    """The server, with the drawn clients instead of random ones."""

    def __init__(self, work: Workload, model: nn.Module, clients: Sequence[Client]) -> None:
        super().__init__(model, None, clients, weighted=True)
        self.work, self.round = work, 0

    def get_eligible_clients(self, eligible_perc: float) -> Sequence[Client]:  # noqa: ARG002
        chosen = [self.clients[k] for k in self.work.chosen(self.round)]
        for client in chosen:
            client.train_set.draw(self.round)
        self.round += 1
        return chosen


class Clock(FederationObserver):
    """Notes the end of each round."""

    def __init__(self, job: Job, server: Server) -> None:
        self.job, self.server = job, server

    def end_round(self, round: int) -> None:  # noqa: A002, ARG002 - the observer's signature
        self.job.tick(lambda: arrays(trained(self.server.model)))


def main(job: Job) -> None:
    set_threads(job)
    work, env = job.workload, FlukeENV()
    env.set_seed(0)
    env.set_device(job.device)
    env.set_inmemory(True)
    env.set_eval_cfg(server=False, locals=False, pre_fit=False, post_fit=False)
    x, y = tensors(work)
    sgd = OptimizerConfigurator(DDict(name="SGD", lr=work.lr, momentum=work.momentum))
    clients = [
        Client(
            k, Batches(work, k, x[k], y[k]), None, sgd, nn.CrossEntropyLoss(), work.epochs,
            persistency=False,  # a client's momentum ends with its round
        )
        for k in range(work.clients)
    ]  # fmt: skip
    server = Drawn(work, module(work), clients)
    algorithm = FedAVG(work.clients, None, {}, clients=clients, server=server)
    algorithm.set_callbacks(Clock(job, server))
    job.start()
    algorithm.run(job.total, work.per_round / work.clients)
    job.save("fluke", arrays(trained(server.model)), ["fluke-fl", "torch", "numpy"])


if __name__ == "__main__":
    main(job())
