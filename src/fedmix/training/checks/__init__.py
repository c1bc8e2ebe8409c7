"""Checks of the arguments, the model and the objective before a federation runs."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from fedmix.core.errors import BadInput
from fedmix.core.losses import Loss
from fedmix.core.validation import instance
from fedmix.data.federated import FederatedData, warn_of_size
from fedmix.exchange import Exchange
from fedmix.models.functional import Model
from fedmix.objectives.base import Objective
from fedmix.server_steps import ServerStep
from fedmix.training.checks.combination import check_combination, check_functions, check_kinds
from fedmix.training.checks.model import model_for, warn_of_probabilities
from fedmix.training.checks.objective import check_objective
from fedmix.training.checks.server_step import check_server_step
from fedmix.training.dpfedavg import DPFedAvg
from fedmix.training.engines import Engine
from fedmix.training.head import Head
from fedmix.training.head import check as check_head
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
    updates: DPFedAvg | None,
    head: Head | None,
) -> tuple[Model, torch.device]:
    """Check the arguments of a `Federation`; return the model for the data and the engine's device.

    Raises:
        BadInput: Something is wrong; the message names the first mistake.
    """
    check_kinds(data, training, exchange, engine, server, loss)
    check_functions(changes, choose, metrics, callbacks)
    check_combination(data, objective, training, exchange)
    model = model_for(data, module, loss)
    for phase in objective.phases():
        model.tail(phase.layer)
    check_objective(objective, model, data)
    check_server_step(server, model)
    if updates is not None:
        instance("updates", updates, DPFedAvg, "give a DPFedAvg, such as DPFedAvg(clip=1.0)")
        if choose is not None:
            raise BadInput(
                "`choose` and `updates` do not go together: DP-FedAvg counts on clients that are "
                "chosen uniformly; leave one of them out"
            )
    if head is not None:
        instance("head", head, Head, "give a Head, such as Head(shrinkage=0.1), or leave it out")
        check_head(model, model.init(), data)
    warn_of_probabilities(model, data)
    # An embedding takes codes of any size.
    if not any(isinstance(part, nn.Embedding) for part in module.modules()):
        warn_of_size(data)
    return model, engine.check()
