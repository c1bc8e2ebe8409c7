"""What server and clients agree on: the experiment, and how each of them loads its own samples."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from fedmix.core.errors import BadInput
from fedmix.data.federated import FederatedData
from fedmix.data.ragged import Ragged
from fedmix.exchange import Exchange
from fedmix.experiment.spec import Experiment
from fedmix.flower.terms import check_exchange
from fedmix.models.functional import Model
from fedmix.objectives.base import Objective
from fedmix.training.checks import model_for
from fedmix.training.dpfedavg import DPFedAvg
from fedmix.training.settings import Training

Config = Mapping[str, Any]
Load = Callable[[int, Config], FederatedData]
HeldOutSamples = Callable[[Config], FederatedData]


@dataclass(frozen=True)
class Task:
    """An experiment, and the functions that load the samples of clients and of the server.

    Both functions return what `fedmix.data.alone` makes of arrays. Their `config` is the run
    configuration; at a client, the node's configuration overrides it.

    Attributes:
        experiment: The experiment.
        load: `load(client, config)` returns the samples of one client.
        held_out: `held_out(config)` returns the samples that the server tests on.
        module: `module(data)` returns the PyTorch module.
        objective: The objective of local training.

    Raises:
        BadInput: The experiment needs raw samples, or an exchange that a federation cannot do.
    """

    experiment: Experiment
    load: Load
    held_out: HeldOutSamples
    module: Callable[[FederatedData], nn.Module]
    objective: Objective

    def __post_init__(self) -> None:
        """Reject what cannot run if samples stay with their clients, before anything is sent."""
        if self.objective.needs.partner == "global":
            raise BadInput(
                "GlobalMix needs raw samples of other clients, which never leave them in a "
                "federation; "
                "use FedMix or NaiveMix, which need means only"
            )
        if self.experiment.head is not None:
            raise BadInput(
                "a head from statistics is set in simulations only; remove [head] from this "
                "experiment"
            )
        if self.exchange is not None:
            check_exchange(self.exchange)
        if self.exchange is not None and self.exchange.secure and self.objective.needs.layer:
            raise BadInput(
                "exchange.secure is for means of samples, sent once; means of hidden states are "
                "sent every round"
            )

    @staticmethod
    def read(
        path: Path, load: Load | None = None, held_out: HeldOutSamples | None = None, **own: Any
    ) -> "Task":
        """Return the task of an experiment file; the arguments are those of `Task.of`."""
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
        """Return the task of an experiment.

        Args:
            experiment: The experiment.
            load: Loads the samples of a client. By default the experiment's data set is partitioned
                as in a local run, and every client keeps its own part.
            held_out: Loads the samples that the server tests on; by default those of the data set.
            module: Makes the module; by default the one that [model] names.
            objective: The objective; by default the one that [objective] names.

        Raises:
            BadInput: The task cannot run in a federation.
        """

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
        """The settings of local training."""
        return self.experiment.build_training()

    @property
    def exchange(self) -> Exchange | None:
        """The exchange of means; None if the objective needs none."""
        return (
            None
            if self.objective.needs.means is None
            else self.experiment.build_exchange() or Exchange()
        )

    @property
    def updates(self) -> DPFedAvg | None:
        """DP-FedAvg, if clients clip their updates."""
        return self.experiment.build_updates()

    def model(self, data: FederatedData) -> Model:
        """Return the model for such data, initialised; raise BadInput if it rejects them."""
        return model_for(data, self.module(data))


def only(data: FederatedData, client: int) -> FederatedData:
    """Return the data of one client alone, without test samples.

    Raises:
        BadInput: There is no such client.
    """
    if not 0 <= client < len(data.clients):
        raise BadInput(
            f"{data.name} has clients 0..{len(data.clients) - 1}, and this is client {client}; "
            "correct partition-id"
        )
    rows = data.clients[client]
    return replace(
        data, x=data.x[rows], y=data.y[rows], clients=Ragged.of([np.arange(len(rows))]), test=None
    )


def _root(config: Config) -> Path | None:
    return Path(str(config["data"])) if config.get("data") else None
