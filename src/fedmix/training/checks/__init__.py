"""Checks of the arguments, the model and the objective before a federation runs."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from fedmix.core.losses import Loss
from fedmix.data.federated import FederatedData, warn_of_size
from fedmix.exchange import Exchange
from fedmix.models.functional import Model
from fedmix.objectives.base import Objective
from fedmix.server_steps import ServerStep
from fedmix.training.checks.combination import check_combination, check_functions, check_kinds
from fedmix.training.checks.model import model_for, warn_of_probabilities
from fedmix.training.checks.objective import check_objective
from fedmix.training.checks.server_step import check_server_step
from fedmix.training.engines import Engine
from fedmix.training.settings import Training

__all__ = ["check_all", "check_objective", "check_server_step", "model_for"]


def check_all(
    module: nn.Module,
    data: FederatedData,
    objective: Objective,
    training: Training,
    *,
    exchange: Exchange | None,
    engine: Engine,
    server: ServerStep,
    loss: Loss | None,
    changes: Any,
    choose: Any,
    metrics: Mapping[str, Any] | None,
    callbacks: Sequence[Any],
) -> tuple[Model, torch.device]:
    """Check the arguments of a `Federation`; return the model for the data and the engine's device.

    Raises:
        BadInput: Something is wrong; the message names the first mistake.
    """
    check_kinds(data, objective, training, exchange, engine, server, loss)
    check_functions(changes, choose, metrics, callbacks)
    check_combination(data, objective, training, exchange)
    model = model_for(data, module, loss)
    for phase in objective.phases():
        model.tail(phase.layer)
    check_objective(objective, model, data)
    check_server_step(server, model)
    warn_of_probabilities(model, data)
    # An embedding takes codes of any size.
    if not any(isinstance(part, nn.Embedding) for part in module.modules()):
        warn_of_size(data)
    return model, engine.check()
