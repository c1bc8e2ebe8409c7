"""An app that knows nothing of fedmix but its two pieces: a linear model, its own training loop,
and Flower's records. Real federations get this file as their app.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Strategy
from torch import Tensor, nn
from torch.nn import functional as F

from fedmix.exchange import Exchange
from fedmix.flower import WithMeans, received_means, share_means
from fedmix.functional import MeanPool, fedmix_loss
from tests.flower.tasks import CLASSES, SIZES, TEST, WIDTH, samples

LAM, LR = 0.1, 0.1
Step = Callable[[nn.Module, Tensor, Tensor, MeanPool | None], Tensor]


def own(context: Context) -> tuple[Any, Any]:
    """A client's samples: more of them where its node says so."""
    client = int(str(context.node_config["partition-id"]))
    count = SIZES[client % len(SIZES)] + int(str(context.node_config.get("more", 0)))
    return samples(client, count)


def mixing(net: nn.Module, x: Tensor, y: Tensor, pool: MeanPool | None) -> Tensor:
    if pool is None:
        return F.cross_entropy(net(x), y)
    return fedmix_loss(net, x, y, *pool.draw(1), lam=LAM)


def plain(net: nn.Module, x: Tensor, y: Tensor, _: MeanPool | None) -> Tensor:
    return F.cross_entropy(net(x), y)


def client_app(step: Step = mixing, mods: list[Any] | None = None) -> ClientApp:
    """One step of gradient descent over all samples."""
    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        net = model()
        net.load_state_dict(arrays_of(message).to_torch_state_dict())
        x, y = (torch.from_numpy(part) for part in own(context))
        optimiser = torch.optim.SGD(net.parameters(), LR)
        loss = step(net, x, y, received_means(context))
        torch.autograd.backward(loss)
        optimiser.step()
        content = RecordDict({"arrays": ArrayRecord(net.state_dict())})
        content["metrics"] = MetricRecord({"loss": loss.item(), "num-examples": len(x)})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        net = model()
        net.load_state_dict(arrays_of(message).to_torch_state_dict())
        x, y = (torch.from_numpy(part) for part in own(context))
        right = float((net(x).argmax(1) == y).float().mean())
        metrics = MetricRecord({"accuracy": right, "num-examples": len(x)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def sharing_app(
    exchange: Exchange, step: Step = mixing, mods: list[Any] | None = None, **more: Any
) -> ClientApp:
    app = client_app(step, mods)
    share_means(app, own, exchange, **{"classes": CLASSES, **more})
    return app


def with_means(strategy: Strategy, exchange: Exchange, **more: Any) -> WithMeans:
    settings: dict[str, Any] = {"clients": len(SIZES), "join_timeout": 1.0, "timeout": 1.0}
    return WithMeans(strategy, exchange, like=TEST, classes=CLASSES, **(settings | more))


def model() -> nn.Linear:
    net = nn.Linear(WIDTH, CLASSES)
    with torch.no_grad():
        net.weight.copy_(torch.arange(WIDTH * CLASSES).view(CLASSES, WIDTH) / 20 - 0.4)
        net.bias.zero_()
    return net


def arrays_of(message: Message) -> ArrayRecord:
    record = message.content["arrays"]
    assert isinstance(record, ArrayRecord)
    return record


def start() -> ArrayRecord:
    return ArrayRecord(model().state_dict())


def values(arrays: ArrayRecord | None) -> dict[str, np.ndarray[Any, Any]]:
    assert arrays is not None
    return {name: array.numpy() for name, array in arrays.items()}
