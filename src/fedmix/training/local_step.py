"""One local step: the phases of an objective, each a step of SGD with momentum and weight decay."""

import torch
from torch import Tensor
from torch.func import grad_and_value

from fedmix.core.types import Batch, Params
from fedmix.models.functional import Model
from fedmix.objectives.base import Phase
from fedmix.training.settings import Training


def rest(params: Params, training: Training) -> Params:
    """The momentum with which every local update begins: none."""
    return {name: torch.zeros_like(p) for name, p in params.items()} if training.momentum else {}


def local_step(
    model: Model,
    phases: tuple[Phase, ...],
    training: Training,
    params: Params,
    velocity: Params,
    anchor: Params,
    batch: Batch,
    lr: Tensor | float,
) -> tuple[Params, Params, Tensor]:
    """Parameters and momentum after one batch, and the first phase's loss before it."""
    losses = []
    for phase in phases:
        params, velocity, loss = _descend(
            model, phase, training, params, velocity, anchor, batch, lr
        )
        losses.append(loss)
    return params, velocity, losses[0]


def _descend(
    model: Model,
    phase: Phase,
    training: Training,
    params: Params,
    velocity: Params,
    anchor: Params,
    batch: Batch,
    lr: Tensor | float,
) -> tuple[Params, Params, Tensor]:
    """v ← momentum·v + ∇ℓ(w) + decay·w,  w ← w − lr·v, for the parameters that the phase trains;
    the others stay.
    """

    def loss(trained: Params) -> Tensor:
        return phase.objective(model, params | trained, anchor, batch)

    gradient, value = grad_and_value(loss)(
        {name: params[name] for name in model.tail(phase.layer).trained}
    )
    params, velocity = dict(params), dict(velocity)
    for name, slope in gradient.items():
        if training.weight_decay:
            slope = slope + training.weight_decay * params[name]
        if training.momentum:
            slope = velocity[name] = training.momentum * velocity[name] + slope
        params[name] = params[name] - lr * slope
    return params, velocity, value
