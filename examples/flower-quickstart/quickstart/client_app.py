"""The ClientApp: it trains on a client's own pictures, and tests on them."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from quickstart import task

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model on local data."""
    net = task.Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    config = msg.content["config"]
    x, y = local_data(context)
    torch.manual_seed(1000 * config["server-round"] + context.node_config["partition-id"])
    loss = task.train(net, x, y, context.run_config["local-epochs"], config["lr"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(x)})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Test the model on local data."""
    net = task.Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    x, y = local_data(context)
    loss, accuracy = task.test(net, x, y)
    found = {"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(x)}
    return Message(content=RecordDict({"metrics": MetricRecord(found)}), reply_to=msg)


def local_data(context: Context) -> tuple[Tensor, Tensor]:
    """The pictures of this node."""
    node, run = context.node_config, context.run_config
    return task.load_data(node["partition-id"], node["num-partitions"], run["seed"])
