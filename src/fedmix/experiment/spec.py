"""Experiments: frozen, validated specs that are read from and written to TOML.

A spec names its run and builds its federation.
"""

import hashlib
import inspect
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

from torch import nn

from fedmix.core.errors import BadInput
from fedmix.core.extras import needed
from fedmix.core.files import printable
from fedmix.core.registry import DATA, MODELS, OBJECTIVES, SERVER_STEPS
from fedmix.data import FederatedData
from fedmix.data.settings import check_settings
from fedmix.exchange import Exchange
from fedmix.experiment.mistakes import sentence
from fedmix.experiment.sections import (
    NAMED,
    SERVER_SECTIONS,
    DataSpec,
    EngineSection,
    ExchangeSection,
    ExchangeSpec,
    HeadSection,
    HeadSpec,
    ModelSpec,
    ObjectiveSpec,
    Section,
    ServerSpec,
    TrainingSection,
    TrainingSpec,
    UpdatesSection,
    UpdatesSpec,
    fields_of,
    type_name,
)
from fedmix.experiment.values import algorithm_of, changed, read_values, refuse_huge, takes, toml
from fedmix.models import initialised
from fedmix.objectives import Hidden, Objective, Proximal
from fedmix.server_steps import ServerStep
from fedmix.training.dpfedavg import DPFedAvg
from fedmix.training.engines import Engine, Sequential, Vectorised
from fedmix.training.federation import Federation
from fedmix.training.head import Head
from fedmix.training.settings import Training

with needed("fedmix.experiment", "cli"):
    from pydantic import Field, ValidationError, model_validator

SCHEMA = 2  # version of run ids; raise it when a default changes
HOW = ("engine.compile", "engine.processes")  # settings that change a run by rounding at most


class Experiment(Section):
    """Everything that a run depends on.

    Two equal experiments give the same weights on the same kind of machine.
    """

    data: DataSpec
    model: ModelSpec
    objective: ObjectiveSpec
    training: TrainingSpec
    exchange: ExchangeSpec | None = None
    engine: EngineSection = EngineSection()
    server: ServerSpec = SERVER_SECTIONS["fedavg"].model_validate({"name": "fedavg"})
    updates: UpdatesSpec | None = None
    head: HeadSpec | None = None
    rounds: Annotated[int, Field(ge=1)] = 40
    evaluate_every: Annotated[int, Field(ge=1)] = 1
    target: Annotated[float, Field(allow_inf_nan=False)] | None = None
    seed: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _combines(self) -> "Experiment":
        check_settings(**self.data.model_dump(exclude={"name"}))
        self.build_training()
        self.build_server()
        self.build_updates()
        self.build_head()
        needs = self.build_objective().needs
        if self.build_exchange() is not None and needs.means is None:
            raise BadInput(
                f"[exchange] is set, but {self.objective.name} uses no means; remove that section"
            )
        return self

    @staticmethod
    def of(
        values: Mapping[str, Any],
        where: str = "experiment",
        origin: Mapping[str, str] | None = None,
    ) -> "Experiment":
        """Validate nested dicts and return the experiment.

        Args:
            values: The values by section.
            where: Where the values came from, for error messages.
            origin: The same by dotted path, for values that came from elsewhere.

        Raises:
            BadInput: Some values are wrong. The message has each one's dotted path and value, and
                the nearest right key.
        """
        refuse_huge(values)
        try:
            experiment = Experiment.model_validate(values)
        except ValidationError as error:
            said = sentence(error, values, list(settings()), where=where, origin=origin or {})
            raise BadInput(printable(said)) from None
        if experiment.exchange is None and experiment.build_objective().needs.means:
            # The spec should state what is exchanged.
            return experiment.model_copy(update={"exchange": ExchangeSection()})
        return experiment

    @staticmethod
    def load(path: Path) -> "Experiment":
        """Read a TOML file; raise BadInput if it cannot be read or some values are wrong."""
        return Experiment.of(read_values(path), str(path))

    def values(self) -> dict[str, Any]:
        """Return the settings as nested dicts, without those that are None."""
        return self.model_dump(exclude_none=True)

    def toml(self) -> str:
        """Return the whole spec, with defaults, as TOML that `load` can read."""
        return toml(self.values())

    def with_settings(self, settings: Mapping[str, Any]) -> "Experiment":
        """Return the experiment with some settings changed.

        Args:
            settings: New values by dotted path, such as {"objective.lam": 0.1}.

        Raises:
            BadInput: A setting does not exist or has a wrong value.
        """
        return Experiment.of(changed(self.values(), settings), "settings")

    def takes(self, path: str) -> bool:
        """Whether this experiment has a setting, given by dotted path.

        If not, another algorithm or data set may have it.
        """
        return takes(self.values(), path)

    @property
    def algorithm(self) -> str:
        """The algorithm's name on the command line."""
        return algorithm_of(self.values())

    @property
    def id(self) -> str:
        """The run's name: data, algorithm, seed, and a hash of settings that are not defaults."""
        return self._named(self.differing())

    @property
    def identity(self) -> str:
        """What identifies a run that may continue: its name without the number of rounds.

        The schema's version stands before it.
        """
        differing = self.differing()
        differing.pop("rounds", None)
        return f"{SCHEMA}:{self._named(differing)}"

    def _named(self, settings: Mapping[str, Any]) -> str:
        said = json.dumps([SCHEMA, settings], sort_keys=True)
        digest = hashlib.sha256(said.encode()).hexdigest()[:10]
        return f"{self.data.name}-{self.algorithm}-s{self.seed}-{digest}"

    def differing(self) -> dict[str, Any]:
        """Return names of sections and settings that differ from the defaults, by dotted path.

        A new setting with a default changes nothing here, so runs keep their names. A changed
        default needs a new SCHEMA. Whether steps are compiled and the number of processes are left
        out: they say how a run is computed, change it by rounding, and may be chosen by machines.
        """
        found: dict[str, Any] = {}
        for name in type(self).model_fields:
            value = getattr(self, name)
            default = type(self).model_fields[name].get_default()
            if not isinstance(value, Section):
                found |= {name: value} if value != default else {}
                continue
            for field, info in type(value).model_fields.items():
                setting = getattr(value, field)
                if (info.is_required() or setting != info.default) and value != default:
                    found[f"{name}.{field}"] = setting
        for how in HOW:
            found.pop(how, None)
        return found

    def build_objective(self) -> Objective:
        """Build the objective, with its proximal term and its layer."""
        spec: dict[str, Any] = self.objective.model_dump()
        name, mu, layer = spec.pop("name"), spec.pop("mu"), spec.pop("layer")
        objective: Objective = OBJECTIVES[name](**spec)
        if layer:
            if not objective.needs.mixes:
                raise BadInput(f"objective.layer={layer}, but {name} mixes nothing; leave it at 0")
            objective = Hidden(objective, layer)
        return objective + Proximal(mu) if mu else objective

    def check_clients(self) -> None:
        """Raise BadInput for more clients a round than the data has.

        Some data sets have no setting for the number of clients; these are not checked.
        """
        if "clients" in type(self.data).model_fields:
            self.build_training().check_clients(self.data.clients, self.data.name)

    @property
    def per_round(self) -> int:
        """How many clients train in a round; of a share of an unknown number, 1."""
        return self.build_training().per_round(getattr(self.data, "clients", 1))

    def build_training(self) -> Training:
        """Build the settings of training."""
        return Training(**self.training.model_dump())

    def build_exchange(self) -> Exchange | None:
        """Build the settings of the exchange; None if there is no exchange."""
        return None if self.exchange is None else Exchange(**self.exchange.model_dump())

    def build_engine(self) -> Engine:
        """Build the engine from those settings that it has."""
        kind = Vectorised if self.engine.name == "vectorised" else Sequential
        known = {f.name for f in fields(kind)}
        return kind(**{n: v for n, v in self.engine.model_dump().items() if n in known})

    def build_server(self) -> ServerStep:
        """Build the server step."""
        spec: dict[str, Any] = self.server.model_dump()
        step: ServerStep = SERVER_STEPS[spec.pop("name")](**spec)
        return step

    def build_updates(self) -> DPFedAvg | None:
        """Build the settings of DP-FedAvg; None if updates are averaged as they are."""
        return None if self.updates is None else DPFedAvg(**self.updates.model_dump())

    def build_head(self) -> Head | None:
        """Build the settings of a head from statistics; None if there is none."""
        return None if self.head is None else Head(**self.head.model_dump(exclude={"name"}))

    def build_data(self, root: Path | None = None) -> FederatedData:
        """Load the data and partition it by the seed; `root` is a folder with the hub's files."""
        spec: dict[str, Any] = self.data.model_dump()
        name = spec.pop("name")
        return load_data(name, root, **spec, seed=self.seed)

    def build_module(self, federated: FederatedData) -> nn.Module:
        """Build the model for this data, initialised by the seed.

        Raises:
            BadInput: The model cannot be built with these settings.
        """
        spec: dict[str, Any] = self.model.model_dump()
        build, how = MODELS[spec.pop("name")], spec.pop("initialise")
        known = {
            "classes": federated.outputs,
            "outputs": federated.outputs,
            "inputs": math.prod(federated.input_shape),
        }
        sizes = {k: v for k, v in known.items() if k in inspect.signature(build).parameters}
        try:
            return initialised(lambda: build(**spec, **sizes), self.seed, how)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            raise BadInput(f"[model] {spec} cannot be built: {error}") from error

    def federation(self, root: Path | None = None) -> Federation:
        """Build everything and return the federation, ready to run.

        Args:
            root: A folder with the hub's files, to use them instead of a download.

        Raises:
            BadInput: The settings do not work together, or with the data.
        """
        self.check_clients()
        engine = self.build_engine()
        engine.check()  # before a download
        federated = self.build_data(root)
        return Federation(
            self.build_module(federated),
            federated,
            self.build_objective(),
            self.build_training(),
            exchange=self.build_exchange(),
            engine=engine,
            server=self.build_server(),
            seed=self.seed,
            updates=self.build_updates(),
            head=self.build_head(),
        )


def load_data(name: str, root: Path | None, **settings: Any) -> FederatedData:
    """Load a data set by name.

    Args:
        name: The name of the data set.
        root: A folder with the hub's files, for data sets that come from there; None downloads
            them.
        settings: The arguments of its loader.
    """
    load = DATA[name]
    at = {"root": root} if root and "root" in inspect.signature(load).parameters else {}
    loaded: FederatedData = load(**settings, **at)
    return loaded


def settings() -> Iterator[tuple[str, str, Any, str]]:
    """Yield each setting's dotted path, type, default, and the name of its section (or empty)."""
    plain: dict[str, type[Section]] = {
        "training": TrainingSection,
        "exchange": ExchangeSection,
        "updates": UpdatesSection,
        "head": HeadSection,
        "engine": EngineSection,
    }
    for field, info in Experiment.model_fields.items():
        if field in NAMED:
            for name, section in NAMED[field].items():
                yield from fields_of(section, f"{field}.", name)
        elif field in plain:
            yield from fields_of(plain[field], f"{field}.", "")
        else:
            yield field, type_name(info.annotation), info.default, ""
