"""BlazeFL: its FedAvg with the thread pool that it recommends, or with its process pool."""

import threading
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import torch
from blazefl.contrib import (
    FedAvgBaseServerHandler,
    FedAvgDownlinkPackage,
    FedAvgProcessPoolClientTrainer,
    FedAvgThreadPoolClientTrainer,
    FedAvgUplinkPackage,
)
from blazefl.core import (
    IPCMode,
    ModelSelector,
    SHMHandle,
    deserialize_model,
    serialize_model,
)
from in_torch import arrays, module, set_threads, tensors, train, trained
from measure import Job, job
from torch import nn
from workload import WORKLOADS, Workload

held = cache(lambda work: module(WORKLOADS[work]))
data = cache(lambda work: tensors(WORKLOADS[work]))


class Models(ModelSelector):
    def select_model(self, model_name: str) -> nn.Module:
        return deepcopy(held(model_name))


def update(
    work: Workload, round_: int, client: int, payload: FedAvgDownlinkPackage
) -> FedAvgUplinkPackage:
    """Train a client; return its weights."""
    net, (x, y) = Models().select_model(work.name), data(work.name)
    deserialize_model(net, payload.model_parameters)
    train(net, x[client], y[client], torch.from_numpy(work.rows(round_, client)), work)
    return FedAvgUplinkPackage(client, serialize_model(net), work.samples)


class Drawn(FedAvgBaseServerHandler):
    """The server, with the drawn clients instead of random ones."""

    def __init__(self, work: Workload, rounds: int) -> None:
        ratio = work.per_round / work.clients
        super().__init__(
            Models(), work.name, None, rounds, work.clients, ratio, "cpu", work.batch, 0
        )
        self.work, self.num_clients_per_round = work, work.per_round

    def sample_clients(self) -> list[int]:
        return self.work.chosen(self.round)


class Threads(FedAvgThreadPoolClientTrainer):
    """A pool of threads."""

    def __init__(self, work: Workload, workers: int) -> None:
        super().__init__(
            Models(), work.name, None, "cpu", work.clients, work.epochs, work.batch, work.lr, 0,
            workers,
        )  # fmt: skip
        self.work, self.round = work, 0

    def worker(
        self,
        cid: int,
        device: str,  # noqa: ARG002 - the trainer's signature
        payload: FedAvgDownlinkPackage,
        stop_event: threading.Event,  # noqa: ARG002
    ) -> FedAvgUplinkPackage:
        return update(self.work, self.round, cid, payload)


@dataclass
class Config:
    work: str
    round: int
    client: int
    threads: int


class Processes(FedAvgProcessPoolClientTrainer):
    """A pool of processes, which exchange weights in shared memory."""

    def __init__(self, work: Workload, workers: int, threads: int) -> None:
        folder = Path(mkdtemp())
        super().__init__(
            Models(), work.name, folder, folder, None, "cpu", work.clients, work.epochs,
            work.batch, work.lr, 0, workers, IPCMode.SHARED_MEMORY,
        )  # fmt: skip
        self.work, self.threads, self.round = work, threads, 0

    def get_client_config(self, cid: int) -> Config:
        return Config(self.work.name, self.round, cid, self.threads)

    @staticmethod
    def worker(
        config: Config,
        payload: FedAvgDownlinkPackage,
        device: str,  # noqa: ARG004 - the trainer's signature
        stop_event: threading.Event,  # noqa: ARG004
        *,
        shm_buffer: FedAvgUplinkPackage,
    ) -> FedAvgUplinkPackage:
        torch.set_num_threads(config.threads)
        package = update(WORKLOADS[config.work], config.round, config.client, payload)
        shm_buffer.model_parameters.copy_(package.model_parameters)
        package.model_parameters = SHMHandle()
        return package


def main(job: Job) -> None:
    set_threads(job)
    work = job.workload
    server = Drawn(work, job.total)
    held(work.name), data(work.name)  # forked processes have them
    if job.workers > 1 and job.threads:
        trainer: Threads | Processes = Processes(work, job.workers, job.threads)
    else:
        trainer = Threads(work, job.workers)
    job.start()
    while not server.if_stop():
        chosen, sent = server.sample_clients(), server.downlink_package()
        trainer.round = server.round
        trainer.local_process(sent, chosen)
        for package in trainer.uplink_package():
            server.load(package)
        job.tick(lambda: arrays(trained(server.model)))
    job.save("blazefl", arrays(trained(server.model)), ["blazefl", "torch", "numpy"])


if __name__ == "__main__":
    main(job())
