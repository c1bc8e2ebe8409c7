"""One local step: the phases of an objective, each a step of SGD with momentum and weight decay."""

import torch
from torch import Tensor
from torch.func import grad_and_value

from fedmix.core.types import Batch, Params
from fedmix.models.functional import Model
from fedmix.objectives.base import Phase
from fedmix.training.settings import Training


def rest(params: Params, training: Training) -> Params:
    """Return the momentum at the start of a local update: zeros, or {} without momentum."""
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
    """Train on one batch.

    Args:
        model: The model.
        phases: The gradient steps to take, in order.
        training: Momentum and weight decay.
        params: The client's weights.
        velocity: The client's momentum.
        anchor: The weights at the start of the round.
        batch: The batch.
        lr: The learning rate.

    Returns:
        The new weights, the new momentum, and the first phase's loss before its step.
    """
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
    """Take one step of SGD: v ← momentum·v + ∇ℓ(w) + decay·w,  w ← w − lr·v.

    Parameters that the phase does not train stay as they are.
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
