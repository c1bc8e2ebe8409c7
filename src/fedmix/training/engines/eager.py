"""Local steps of several clients without a compiler, on a CPU.

Clients do not touch each other, so the gradients of all are the gradient of the sum of their
losses. `vmap` then stacks the losses alone, PyTorch's autograd runs backward through ordinary
tensors, and weights are changed where they are: new tensors of all clients' weights would not stay
in the caches. Results are those of `local_step`, operation by operation.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap
from torch.overrides import TorchFunctionMode

from fedmix.core.types import Batch, Params, each_field
from fedmix.models.functional import Model
from fedmix.objectives.base import Phase
from fedmix.training.settings import Training


class Stack(NamedTuple):
    """The tensors of clients that train side by side, each with an axis of clients.

    `spare` holds a tensor like each of the weights, for what is subtracted from these.
    """

    params: Params
    velocity: Params
    spare: Params


class AsksForGradients(Exception):
    """A model's code asks whether a tensor has a gradient, which it has not under `vmap` here."""


class Watch(TorchFunctionMode):
    """Raises AsksForGradients where code asks for `requires_grad`, as code that puts on hooks does.

    It slows a step down, so it is for the first one.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function == torch.Tensor.requires_grad.__get__:  # type: ignore[attr-defined]
            raise AsksForGradients
        return function(*args, **(kwargs or {}))


def stepped(
    model: Model,
    phases: tuple[Phase, ...],
    training: Training,
    stack: Stack,
    anchor: Params,
    batch: Batch,
    lr: Tensor,
) -> Tensor:
    """Train every client on its batch, in place; return their losses before the first phase.

    Args:
        model: The model.
        phases: The gradient steps to take, in order.
        training: Momentum and weight decay.
        stack: The clients' weights and momentum, which are changed.
        anchor: The weights at the start of the round.
        batch: The batches of all clients; what the server shares has no axis of clients.
        lr: The learning rate.
    """
    shared, batch = batch.shared, batch._replace(shared=None)
    losses = [
        _descended(model, phase, training, stack, anchor, batch, shared, lr) for phase in phases
    ]
    return losses[0]


def _descended(
    model: Model,
    phase: Phase,
    training: Training,
    stack: Stack,
    anchor: Params,
    batch: Batch,
    shared: Params | None,
    lr: Tensor,
) -> Tensor:
    def loss(params: Params, batch: Batch) -> Tensor:
        return phase.objective(model, params, anchor, batch._replace(shared=shared))

    names = model.tail(phase.layer).trained
    trained = {name: stack.params[name].detach().requires_grad_() for name in names}
    params = stack.params | trained
    with torch.enable_grad():
        if len(batch.x) == 1 and not model.recurrent:  # the plain step is faster than its vmap
            alone = {name: p[0] for name, p in params.items()}
            losses = loss(alone, each_field(lambda f: f[0], batch))[None]
        else:
            losses = vmap(loss, in_dims=(0, each_field(lambda _: 0, batch)))(params, batch)
        slopes = (
            torch.autograd.grad(losses.sum(), list(trained.values()), materialize_grads=True)
            if losses.grad_fn is not None
            else [torch.zeros_like(p) for p in trained.values()]
        )
    for name, slope in zip(names, slopes, strict=True):
        weight = stack.params[name]
        if training.weight_decay:
            slope = slope + training.weight_decay * weight
        if training.momentum:
            slope = stack.velocity[name].mul_(training.momentum).add_(slope)
        weight.sub_(torch.mul(slope, lr, out=stack.spare[name]))
    return losses.detach()
