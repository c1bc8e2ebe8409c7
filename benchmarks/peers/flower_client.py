"""Flower's ClientApp.

Each Ray actor imports this once, and keeps the data and one module for all its messages.
"""

from functools import cache

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from in_torch import module, tensors, train
from torch import Tensor, from_numpy, nn, set_num_threads
from workload import WORKLOADS

app = ClientApp()


@cache
def held(name: str, threads: int) -> tuple[nn.Module, Tensor, Tensor]:
    if threads:
        set_num_threads(threads)
    return module(WORKLOADS[name]), *tensors(WORKLOADS[name])


@app.query()
def partition(message: Message, context: Context) -> Message:
    """Tell which client this node is, since Flower gives nodes random ids."""
    answer = MetricRecord({"client": int(context.node_config["partition-id"])})
    return Message(RecordDict({"metrics": answer}), reply_to=message)


@app.train()
def update(message: Message, context: Context) -> Message:
    config = message.content["config"]
    work, client = WORKLOADS[config["workload"]], int(context.node_config["partition-id"])
    net, x, y = held(work.name, config["threads"])
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    train(
        net, x[client], y[client], from_numpy(work.rows(config["server-round"] - 1, client)), work
    )
    metrics = MetricRecord({"num-examples": work.samples})
    return Message(
        RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message
    )
