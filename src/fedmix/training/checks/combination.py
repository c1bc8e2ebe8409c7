"""Checks that the parts of a federation work together, before anything runs."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from fedmix.core.errors import BadInput, described
from fedmix.core.losses import Loss, cross_entropy
from fedmix.core.validation import instance
from fedmix.data.federated import FederatedData
from fedmix.exchange import Exchange, Traffic
from fedmix.objectives.base import Objective
from fedmix.server_steps import ServerStep
from fedmix.training.engines import Engine
from fedmix.training.settings import Training

OURS = (  # columns of metrics.jsonl, whose names are taken
    "accuracy", "mse", "loss", "round", "local_loss", "seconds", "bytes_up", "bytes_down",
    "head_accuracy", "head_loss", *(field.name for field in fields(Traffic)),
)  # fmt: skip


def check_kinds(
    data: FederatedData,
    training: Training,
    exchange: Exchange | None,
    engine: Engine,
    server: ServerStep,
    loss: Loss | None,
) -> None:
    """Raise BadInput for an argument of the wrong class."""
    exchange = Exchange() if exchange is None else exchange
    loss = cross_entropy if loss is None else loss
    for what, value, kind, how in (
        ("data", data, FederatedData, "make a FederatedData of it, by fedmix.data.from_arrays"),
        ("training", training, Training, "give a Training, such as Training(clients_per_round=5)"),
        ("exchange", exchange, Exchange, "give an Exchange, such as Exchange(m=5)"),
        ("engine", engine, Engine, "give an engine, such as Vectorised() or Sequential()"),
        ("server", server, ServerStep, "give a server step, such as FedAvg() or FedAdam()"),
        ("loss", loss, Loss, "give a fedmix.core.losses.Loss, or leave it out"),
    ):
        instance(what, value, kind, how)


def check_functions(
    changes: Any, choose: Any, metrics: Mapping[str, Any] | None, callbacks: Sequence[Any]
) -> None:
    """Raise BadInput for what cannot be called, and for names of metrics that are taken."""
    for what, value in (("changes", changes), ("choose", choose)):
        if value is not None and not callable(value):
            raise BadInput(
                f"`{what}` is {described(value)}; give a function of the round, or leave it out"
            )
    metrics = {} if metrics is None else metrics
    instance("metrics", metrics, Mapping, "give functions by name")
    for name, metric in metrics.items():
        if not isinstance(name, str) or not name or name in OURS or not callable(metric):
            raise BadInput(
                f"metrics[{name!r}] is {described(metric)}; give a function of outputs and "
                f"targets, under another name than {', '.join(OURS)}"
            )
    if not isinstance(callbacks, list | tuple) or not all(map(callable, callbacks)):
        raise BadInput(
            f"`callbacks` is {described(callbacks)}; give a list of functions of a finished round "
            "and its federation"
        )


def check_combination(
    data: FederatedData, objective: Objective, training: Training, exchange: Exchange | None
) -> None:
    """Raise BadInput for a combination of data, objective and settings that cannot work."""
    needs = objective.needs
    training.check_clients(len(data.clients), data.name)
    if needs.partner == "global" and data.private:
        raise BadInput(
            f"GlobalMix needs raw samples of other clients and {data.name} is private; FedMix and "
            "NaiveMix need means only"
        )
    if needs.means:
        (exchange or Exchange()).check(data.clients.sizes)
    if exchange is not None and needs.means is None:
        raise BadInput(
            "an exchange was given, but this objective uses no means; leave it out, or use FedMix "
            "or NaiveMix"
        )
    if exchange is not None and exchange.secure:
        raise BadInput(
            "exchange.secure hides means from the server of a federation on Flower, and here is "
            "none; leave it out"
        )
    if exchange is not None and exchange.split == "class" and data.classes is None:
        raise BadInput(
            f"exchange.split='class' needs classes, and {data.name} is a regression; use "
            "split='random'"
        )
    if (
        needs.means
        and needs.layer
        and exchange is not None
        and (exchange.source == "noise" or exchange.wait)
    ):
        raise BadInput(
            "exchange.source='noise' and exchange.wait do not apply to means of hidden states, "
            "which are sent every round"
        )
    if needs.counts and data.classes is None:
        raise BadInput(
            f"this objective needs label counts, and {data.name} is a regression; use another one"
        )
    if needs.state and len(objective.phases()) > 1:
        raise BadInput(
            "an objective whose clients keep something takes one gradient step a batch; do not add "
            "it to Hidden(...)"
        )
