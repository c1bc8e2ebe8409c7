"""The plain PyTorch loop: a module, `torch.optim.SGD`, `loss.backward()`, client by client.

It shares no code with the engines, so it also checks their results. It is written with care, so
that the comparison is with the usual way and not with a bad one: data stays on the device, nothing
waits for the GPU inside a client, and LSTMs are PyTorch's own.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedmix.core.errors import BadInput
from fedmix.data.shakespeare import CLASSES
from fedmix.data.transforms import crop_and_flip
from fedmix.kernels.precision import Precision, arithmetic
from fedmix.models import Embedding
from fedmix.objectives import FedMix, NaiveMix, Objective, Supervised
from fedmix.training.aggregation import Updates
from fedmix.training.batches import Received, Resident
from fedmix.training.draws import ClientPlan
from fedmix.training.engines import Work
from fedmix.training.settings import Training

KNOWN = ("fedavg", "naivemix", "fedmix")
LoopLoss = Callable[[nn.Module, Tensor, Tensor, Received | None], Tensor]


class PlainLoop:
    """Runs the clients of a round in the plain loop, with an engine's draws and interface."""

    def __init__(
        self,
        module: nn.Module,
        loss: LoopLoss,
        training: Training,
        device: torch.device,
        precision: Precision = "float32",
    ) -> None:
        self.module, self.loss, self.training = module.to(device).train(), loss, training
        self.precision = precision
        self.weights = [p for p in module.parameters() if p.requires_grad]

    def run_round(self, data: Resident, work: Work) -> Iterator[Updates]:
        for client, plan in zip(work.clients.tolist(), work.plans, strict=True):
            with torch.no_grad():
                for weight, start in zip(self.weights, work.params.values(), strict=True):
                    weight.copy_(start)
            with arithmetic(self.precision):
                loss = self._train(data, client, plan, work)
            trained = zip(work.params, self.weights, strict=True)
            yield Updates(
                [client], {name: w.detach().clone()[None] for name, w in trained}, loss[None]
            )

    def _train(self, data: Resident, client: int, plan: ClientPlan, work: Work) -> Tensor:
        """Run one client's local update; return its mean loss."""
        how = self.training
        optimiser = torch.optim.SGD(
            self.weights, work.lr, how.momentum, weight_decay=how.weight_decay
        )
        transform = data.data.transform
        rows = torch.from_numpy(data.data.clients[client][plan.rows]).to(data.device)
        crops = None if plan.crops is None else torch.from_numpy(plan.crops).to(data.device)
        losses = []
        for step, size in enumerate(plan.mask.sum(1).tolist()):  # padding is at the end of a batch
            x = transform.units(data.x[rows[step, :size]])
            if crops is not None:
                x = crop_and_flip(x, crops[step, :size], transform.pad)
            mean = None
            if work.pool is not None and plan.means is not None:
                entry = int(plan.means[step, 0])
                mean = Received(work.pool.x[entry], work.pool.y[entry])
            optimiser.zero_grad()
            loss = self.loss(self.module, transform.normalise(x), data.y[rows[step, :size]], mean)
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            optimiser.step()
            losses.append(loss.detach())
        return torch.stack(losses).mean()


def loop_loss(objective: Objective) -> LoopLoss:
    """The objective as it is usually written in a loop; BadInput if the loop does not have it."""
    match objective:
        case Supervised():
            return lambda module, x, y, _: F.cross_entropy(module(x), y)
        case NaiveMix(lam=lam, per="batch"):
            return lambda module, x, y, mean: naivemix(module, x, y, given(mean), lam)
        case FedMix(lam=lam, scale="proposition", expand="loss", per="batch", third=1.0):
            return lambda module, x, y, mean: fedmix(module, x, y, given(mean), lam)
    raise BadInput(f"the plain loop knows {', '.join(KNOWN)}; measure other algorithms without it")


def naivemix(module: nn.Module, x: Tensor, y: Tensor, mean: Received, lam: float) -> Tensor:
    """Mixup with the mean as if it were a sample."""
    outputs = module((1 - lam) * x + lam * mean.x)
    return (1 - lam) * F.cross_entropy(outputs, y) + lam * F.cross_entropy(
        outputs, mean.y.expand_as(outputs)
    )


def fedmix(module: nn.Module, x: Tensor, y: Tensor, mean: Received, lam: float) -> Tensor:
    """ℓ1 + ℓ2 + ℓ3, with ℓ3 by double backward.

    The input gradient carries the batch's 1/B, so ℓ3 sums over all elements.
    """
    x = ((1 - lam) * x).requires_grad_()
    outputs = module(x)
    own = F.cross_entropy(outputs, y)
    [slope] = torch.autograd.grad(own, x, create_graph=True)
    return (
        (1 - lam) * own
        + lam * F.cross_entropy(outputs, mean.y.expand_as(outputs))
        + lam * (slope * mean.x).sum()
    )


def given(mean: Received | None) -> Received:
    """The mean that came with a batch; BadInput if none did."""
    if mean is None:
        raise BadInput("this round carries no means; run a mean exchange first")
    return mean


class PlainCharLSTM(nn.Module):
    """`models.charlstm` with PyTorch's own LSTM, and its weights in the same order.

    `nn.LSTM` has a second bias in every layer; here it is zero and not trained, so that both models
    are the same function.
    """

    def __init__(self, classes: int = CLASSES, embedding: int = 8, hidden: int = 256) -> None:
        super().__init__()
        self.embedding = Embedding(classes, embedding)
        self.lstm = nn.LSTM(embedding, hidden, num_layers=2, batch_first=True)
        self.head = nn.Linear(hidden, classes)
        for name, weight in self.lstm.named_parameters():
            if name.startswith("bias_hh"):
                nn.init.zeros_(weight).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        # cuDNN's LSTM cannot be differentiated twice
        with torch.backends.cudnn.flags(enabled=not x.requires_grad):
            hidden, _ = self.lstm(self.embedding(x))
        return self.head(hidden[:, -1])  # type: ignore[no-any-return]  # a module's call is Any
