"""Flower: its FedAvg strategy in the simulation engine, one Ray actor per worker."""

import time
from collections.abc import Iterable
from typing import Any

import flower_client
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from in_torch import arrays, module
from measure import Job, job
from workload import Array, Workload


class Timed(FedAvg):
    """FedAvg on the drawn clients instead of random nodes, with a clock around each round."""

    def __init__(self, job: Job, nodes: dict[int, int]) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.job, self.nodes = job, nodes

    def configure_train(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,  # noqa: ARG002 - the strategy's signature
    ) -> Iterable[Message]:
        config["server-round"] = server_round
        content = RecordDict({"arrays": arrays, "config": config})
        clients = self.job.workload.chosen(server_round - 1)
        return [Message(content, self.nodes[k], MessageType.TRAIN) for k in clients]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        averaged, metrics = super().aggregate_train(server_round, replies)
        assert averaged is not None
        self.job.tick(lambda: weights(averaged, self.job.workload))
        return averaged, metrics


def weights(record: ArrayRecord, work: Workload) -> list[Array]:
    state = record.to_torch_state_dict()
    names = [n for n, p in module(work).named_parameters() if p.requires_grad]
    return arrays(state[name] for name in names)


def nodes_by_client(grid: Grid, count: int) -> dict[int, int]:
    """Ask every node for its partition, once all have joined; return the node of each client."""
    while len(list(grid.get_node_ids())) < count:
        time.sleep(0.1)
    questions = [Message(RecordDict(), node, MessageType.QUERY) for node in grid.get_node_ids()]
    replies = grid.send_and_receive(questions)
    return {int(r.content["metrics"]["client"]): r.metadata.src_node_id for r in replies}


def main(job: Job) -> None:
    work = job.workload
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:  # noqa: ARG001 - the app's signature
        strategy = Timed(job, nodes_by_client(grid, work.clients))
        job.start()
        result = strategy.start(
            grid,
            ArrayRecord(module(work).state_dict()),
            num_rounds=job.total,
            train_config=ConfigRecord({"workload": work.name, "threads": job.threads}),
        )
        job.save("flower", weights(result.arrays, work), ["flwr", "ray", "torch", "numpy"])

    ray: dict[str, Any] = {"_node_ip_address": "127.0.0.1", "log_to_driver": False}
    config: dict[str, Any] = {"init_args": ray}
    if job.threads:
        config["client_resources"] = {"num_cpus": job.threads, "num_gpus": 0.0}
        ray["num_cpus"] = job.workers * job.threads
    run_simulation(server, flower_client.app, num_supernodes=work.clients, backend_config=config)


if __name__ == "__main__":
    main(job())
