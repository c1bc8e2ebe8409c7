"""What server and clients of a federation agree on: the experiment, and how each comes by its own
samples.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from fedmix.core.errors import BadInput
from fedmix.data.federated import FederatedData, Ragged
from fedmix.exchange import Exchange
from fedmix.experiment.spec import Experiment
from fedmix.models.functional import Model
from fedmix.objectives.base import Objective
from fedmix.training.checks import model_for
from fedmix.training.settings import Training

Config = Mapping[str, Any]
Load = Callable[[int, Config], FederatedData]
HeldOutSamples = Callable[[Config], FederatedData]


@dataclass(frozen=True)
class Task:
    """An experiment, `load(client, config)` for a client's own samples, `held_out(config)` for the
    server's to test on.

    Both return what `fedmix.data.alone` makes of arrays; `config` is the run's configuration, at a
    client with its node's over it. Without them the experiment's data set is dealt out as in a
    local run, and every party keeps its own part of it. Your own `module(data)` and `objective`
    stand in the place of [model] and [objective].
    """

    experiment: Experiment
    load: Load
    held_out: HeldOutSamples
    module: Callable[[FederatedData], nn.Module]
    objective: Objective

    def __post_init__(self) -> None:
        """Refuse what cannot run where samples stay with their clients, before anything is sent."""
        if self.objective.needs.partner == "global":
            raise BadInput(
                "GlobalMix needs raw samples of other clients, which never leave them in a "
                "federation; "
                "use FedMix or NaiveMix, which need means only"
            )
        if self.exchange is not None and self.exchange.source != "pool":
            raise BadInput(
                f"exchange.source={self.exchange.source!r} is a control for simulations, in which "
                "no means travel; "
                "use source='pool' in a federation"
            )
        if self.exchange is not None and self.exchange.secure and self.objective.needs.layer:
            raise BadInput(
                "exchange.secure is for means of samples, sent once; means of hidden states are "
                "sent every round"
            )

    @staticmethod
    def read(
        path: Path, load: Load | None = None, held_out: HeldOutSamples | None = None, **own: Any
    ) -> "Task":
        """The task of an experiment file; `own` may be `module` and `objective`."""
        return Task.of(Experiment.load(path), load, held_out, **own)

    @staticmethod
    def of(
        experiment: Experiment,
        load: Load | None = None,
        held_out: HeldOutSamples | None = None,
        *,
        module: Callable[[FederatedData], nn.Module] | None = None,
        objective: Objective | None = None,
    ) -> "Task":
        """The task of an experiment."""

        def dealt(client: int, config: Config) -> FederatedData:
            return only(experiment.build_data(_root(config)), client)

        def tests(config: Config) -> FederatedData:
            return experiment.build_data(_root(config))

        objective = objective or experiment.build_objective()
        return Task(
            experiment,
            load or dealt,
            held_out or tests,
            module or experiment.build_module,
            objective,
        )

    @property
    def training(self) -> Training:
        return self.experiment.build_training()

    @property
    def exchange(self) -> Exchange | None:
        return (
            None
            if self.objective.needs.means is None
            else self.experiment.build_exchange() or Exchange()
        )

    def model(self, data: FederatedData) -> Model:
        """The model for such data, with its first weights; refused if it does not take them."""
        return model_for(data, self.module(data))


def only(data: FederatedData, client: int) -> FederatedData:
    """One client's samples and nobody else's."""
    if not 0 <= client < len(data.clients):
        raise BadInput(
            f"{data.name} has clients 0..{len(data.clients) - 1}, and this is client {client}; "
            "correct partition-id"
        )
    rows = data.clients[client]
    return replace(
        data,
        x=data.x[rows],
        y=data.y[rows],
        clients=Ragged.of([np.arange(len(rows))]),
        test=None,
    )


def _root(config: Config) -> Path | None:
    return Path(str(config["data"])) if config.get("data") else None
