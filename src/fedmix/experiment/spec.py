"""Experiments: frozen, validated specs that are read from and written to TOML.

A spec names its run and builds its federation. Sections take their fields and defaults from the
functions and classes that they build, so that each default has one source.
"""

import difflib
import hashlib
import inspect
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import fields
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    ValidationError,
    create_model,
    model_validator,
)
from torch import nn

from fedmix.core.errors import BadInput
from fedmix.core.files import printable, read_toml
from fedmix.core.registry import ALGORITHMS, DATA, MODELS, OBJECTIVES, SERVER_STEPS
from fedmix.data import FederatedData
from fedmix.data.settings import check_settings
from fedmix.exchange import Exchange
from fedmix.kernels.precision import Precision
from fedmix.models import initialised
from fedmix.models.initialise import Initialisation
from fedmix.objectives import Hidden, Objective, Proximal
from fedmix.server_steps import ServerStep
from fedmix.training.engines import Engine, Sequential, Vectorised
from fedmix.training.federation import Federation
from fedmix.training.settings import Training

SIZES = ("classes", "inputs", "outputs")  # arguments of models that follow from the data
LARGEST = 1 << 20  # largest size of an experiment file, in bytes
SCHEMA = 1  # version of run ids; raise it when a default changes
LONGEST = 200  # most characters of a wrong value in a message


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, protected_namespaces=())


def _section(
    name: str | None, build: Callable[..., Any], *, skip: tuple[str, ...] = (), **more: Any
) -> type[_Section]:
    """Make a section whose fields are the parameters of `build`.

    Args:
        name: The value of its field `name`; None if the section has no such field.
        build: The function or class.
        skip: Parameters that are no settings.
        more: Further fields.
    """
    hints = get_type_hints(build.__init__ if inspect.isclass(build) else build)
    fields: dict[str, Any] = {} if name is None else {"name": (Literal[name], ...)}
    for parameter in inspect.signature(build).parameters.values():
        if parameter.name not in skip:
            default = ... if parameter.default is parameter.empty else parameter.default
            hint = hints[parameter.name]
            if get_origin(hint) is tuple:
                # TOML has lists where Python has tuples.
                hint = Annotated[hint, Field(strict=False)]
            fields[parameter.name] = (hint, default)
    title = build.__name__ if name is None else name
    return create_model(title, __base__=_Section, __doc__=inspect.getdoc(build), **fields, **more)


def _union(sections: Mapping[str, type[_Section]]) -> Any:
    return Annotated[Union[tuple(sections.values())], Discriminator("name")]  # noqa: UP007 - built from a list


DATA_SECTIONS = {n: _section(n, f, skip=("seed", "root", "cache")) for n, f in DATA.items()}
MODEL_SECTIONS = {
    n: _section(n, f, skip=SIZES, initialise=(Initialisation, "he")) for n, f in MODELS.items()
}
OBJECTIVE_SECTIONS = {
    n: _section(
        n,
        o,
        mu=(Annotated[float, Field(ge=0, allow_inf_nan=False)], 0.0),
        layer=(Annotated[int, Field(ge=0)], 0),
    )
    for n, o in OBJECTIVES.items()
}
SERVER_SECTIONS = {n: _section(n, f) for n, f in SERVER_STEPS.items()}
NAMED = {
    "data": DATA_SECTIONS,
    "model": MODEL_SECTIONS,
    "objective": OBJECTIVE_SECTIONS,
    "server": SERVER_SECTIONS,
}
ExchangeSection = _section(None, Exchange)
TrainingSection = _section(None, Training)
if TYPE_CHECKING:  # their fields are known at run time only
    DataSpec: TypeAlias = Any
    ModelSpec: TypeAlias = Any
    ObjectiveSpec: TypeAlias = Any
    TrainingSpec: TypeAlias = Any
    ExchangeSpec: TypeAlias = Any
    ServerSpec: TypeAlias = Any
else:
    DataSpec, ModelSpec, ObjectiveSpec = (
        _union(DATA_SECTIONS),
        _union(MODEL_SECTIONS),
        _union(OBJECTIVE_SECTIONS),
    )
    TrainingSpec, ExchangeSpec = TrainingSection, ExchangeSection
    ServerSpec = _union(SERVER_SECTIONS)


class EngineSection(_Section):
    """Where and how clients run."""

    name: Literal["vectorised", "sequential"] = "vectorised"
    device: str = Vectorised.device
    chunk: Annotated[int, Field(ge=1)] | None = Vectorised.chunk
    compile: bool | None = Vectorised.compile
    precision: Precision = Vectorised.precision
    processes: Annotated[int, Field(ge=1)] = 1  # that `fedmix run` and `resume` start


class Experiment(_Section):
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
    rounds: Annotated[int, Field(ge=1)] = 40
    evaluate_every: Annotated[int, Field(ge=1)] = 1
    target: Annotated[float, Field(allow_inf_nan=False)] | None = None
    seed: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _combines(self) -> "Experiment":
        check_settings(**self.data.model_dump(exclude={"name"}))
        self.build_training()
        self.build_server()
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
        try:
            experiment = Experiment.model_validate(values)
        except ValidationError as error:
            mistakes = [
                (_source(path, where, origin or {}), said)
                for path, said in _mistakes(error, values)
            ]
            told = (
                f"{source}: {'; '.join(said for _, said in all_)}"
                for source, all_ in groupby(mistakes, itemgetter(0))
            )
            raise BadInput(printable("; ".join(told))) from None
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
        default needs a new SCHEMA. The number of processes is left out, since every number gives
        the same run.
        """
        found: dict[str, Any] = {}
        for name in type(self).model_fields:
            value = getattr(self, name)
            default = type(self).model_fields[name].get_default()
            if not isinstance(value, _Section):
                found |= {name: value} if value != default else {}
                continue
            for field, info in type(value).model_fields.items():
                setting = getattr(value, field)
                if (info.is_required() or setting != info.default) and value != default:
                    found[f"{name}.{field}"] = setting
        found.pop("engine.processes", None)
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
        federated = self.build_data(root)
        return Federation(
            self.build_module(federated),
            federated,
            self.build_objective(),
            self.build_training(),
            exchange=self.build_exchange(),
            engine=self.build_engine(),
            server=self.build_server(),
            seed=self.seed,
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


def read_values(path: Path) -> dict[str, Any]:
    """Read the values of a TOML file, without validation.

    Raises:
        BadInput: The file cannot be read, or it records a script's own federation.
    """
    values = read_toml(path, LARGEST, "give a preset's name or a TOML file of a few lines")
    if "recorded" in values:
        raise BadInput(
            f"{path} tells of a script's own federation, which that script alone can make; run the "
            "script again"
        )
    return values


def section_of(values: Mapping[str, Any], section: str) -> dict[str, Any]:
    """Return a section of values that may be invalid; empty if it is missing or not a section."""
    found = values.get(section)
    return found if isinstance(found, dict) else {}


def changed(values: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with some settings changed, given by dotted path, without validation.

    Raises:
        BadInput: A path leads through a value that is not a section.
    """
    new = deepcopy(dict(values))
    # Names come first, since another name has other fields.
    for path in sorted(settings, key=lambda path: not path.endswith(".name")):
        value = settings[path]
        *sections, key = path.split(".")
        at = new
        for section in sections:
            at = at.setdefault(section, {})
            if not isinstance(at, dict):
                raise BadInput(printable(f"{path}: {section} is a value, not a section"))
        if key == "name" and at.get(key, value) != value and sections and sections[0] != "engine":
            at.clear()
            if sections == ["objective"] and not any(p.startswith("exchange.") for p in settings):
                new.pop("exchange", None)
        at[key] = value
    return new


def takes(values: Mapping[str, Any], path: str) -> bool:
    """Whether such an experiment has a setting, given by dotted path.

    It is True if that is not known; validation decides then.
    """
    section, _, key = path.rpartition(".")
    if section == "exchange":
        section, key = "objective", "per"  # objectives that use means have it
    known = NAMED.get(section, {}).get(str(section_of(values, section).get("name")))
    return known is None or key in known.model_fields


def algorithm_of(values: Mapping[str, Any]) -> str:
    """Return the command line's name for an objective and its exchange."""
    objective, exchange = section_of(values, "objective"), section_of(values, "exchange")
    name = str(objective.get("name", "run"))
    known = {n: make() for n, make in ALGORITHMS.items()}
    fitting = {
        n: len(a.settings) + len(a.exchange or {})
        for n, a in known.items()
        if (a.objective, a.prox) == (name, False)
        and a.settings.items() <= objective.items()
        and (a.exchange or {}).items() <= exchange.items()
    }
    base = max(fitting, key=lambda n: fitting[n], default=name)
    if objective.get("layer"):
        base = f"hidden-{base}"
    if not objective.get("mu"):
        return base
    prox = [n for n, a in known.items() if a.prox and a.objective == base]
    return prox[0] if prox else f"{base}+prox"


def old_identity(values: Mapping[str, Any]) -> str:
    """Return what identified a run before ids had a schema: a hash of all settings in its file.

    Args:
        values: The values of a folder's experiment.toml, in its order.
    """
    engine = {k: v for k, v in section_of(values, "engine").items() if k != "processes"}
    digest = hashlib.sha256(toml({**values, "rounds": 1, "engine": engine}).encode())
    name, seed = section_of(values, "data").get("name"), values.get("seed")
    return f"{name}-{algorithm_of(values)}-s{seed}-{digest.hexdigest()[:10]}"


def toml(values: Mapping[str, Any]) -> str:
    """Format nested values as TOML; those that are in no section come first."""
    import tomli_w

    flat = {k: v for k, v in values.items() if not isinstance(v, dict)}
    return tomli_w.dumps(flat | {k: v for k, v in values.items() if isinstance(v, dict)})


def settings() -> Iterator[tuple[str, str, Any, str]]:
    """Yield each setting's dotted path, type, default, and the name of its section (or empty)."""
    plain: dict[str, type[_Section]] = {
        "training": TrainingSection,
        "exchange": ExchangeSection,
        "engine": EngineSection,
    }
    for field, info in Experiment.model_fields.items():
        if field in NAMED:
            for name, section in NAMED[field].items():
                yield from _fields(section, f"{field}.", name)
        elif field in plain:
            yield from _fields(plain[field], f"{field}.", "")
        else:
            yield field, _type(info.annotation), info.default, ""


def _fields(section: type[_Section], prefix: str, name: str) -> Iterator[tuple[str, str, Any, str]]:
    for field, info in section.model_fields.items():
        if field != "name" or not name:
            default = "(required)" if info.is_required() else info.default
            yield prefix + field, _type(info.annotation), default, name


def _type(annotation: Any) -> str:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(parts[0])
    if origin in (Union, UnionType):
        return " | ".join(_type(part) for part in parts)
    if origin is Literal:
        return " | ".join(repr(part) for part in parts)
    if annotation is NoneType:
        return "None"
    return annotation.__name__ if inspect.isclass(annotation) and not parts else str(annotation)


def _source(path: str, where: str, origin: Mapping[str, str]) -> str:
    """Say where the value at a path came from; without a path, name all sources."""
    if not path:
        return f"{where} with {' and '.join(sorted(set(origin.values())))}" if origin else where
    within = (
        source
        for at, source in origin.items()
        if f"{path}.".startswith(f"{at}.") or f"{at}.".startswith(f"{path}.")
    )
    return next(within, where)


def _mistakes(error: ValidationError, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the dotted path of each mistake, or an empty one, and a sentence about it."""
    for mistake in error.errors():
        path = [str(part) for part in mistake["loc"]]
        at: Any = values
        shown = []
        # pydantic puts the section's name, or a type of a union, between the keys; drop these
        for part in path:
            if isinstance(at, Mapping) and part in at:
                at = at[part]
                shown.append(part)
            elif part == path[-1] and mistake["type"] == "missing":
                shown.append(part)
        dotted = ".".join(shown) or "experiment"
        match mistake["type"]:
            case "extra_forbidden":
                # If the section does not exist, name the setting in it.
                while isinstance(at, Mapping) and at:
                    key, at = next(iter(at.items()))
                    shown.append(str(key))
                dotted = ".".join(shown)
                yield dotted, f"{dotted}={_shown(at)} is not a setting{_nearest(shown, values)}"
            case "missing" | "union_tag_not_found":
                missing = dotted if mistake["type"] == "missing" else f"{dotted}.name"
                yield "", f"{missing} is missing; give it a value"
            case "union_tag_invalid":
                name = at.get("name")
                known = str(mistake["ctx"]["expected_tags"]).replace("'", "")
                near = _close(str(name), known.split(", "))
                yield (
                    f"{dotted}.name",
                    f"{dotted}.name={_shown(name)} is unknown{near}; choose one of {known}",
                )
            case "value_error":
                said = str(mistake["ctx"]["error"])
                named = re.match(r"(\w+\.\w+)=", said)
                yield named[1] if named else "", said
            case _:
                reason = mistake["msg"].removeprefix("Input ")
                yield dotted, f"{dotted}={_shown(at)} {reason}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _nearest(shown: list[str], values: Mapping[str, Any]) -> str:
    *section, key = shown
    name = str(section_of(values, shown[0]).get("name", ""))
    there = [
        path.split(".")[-1]
        for path, _, _, of in settings()
        if path.split(".")[:-1] == section and of in ("", name)
    ]
    known = there if section and there else list(Experiment.model_fields)
    near = (
        _close(key, known) if there else _close(".".join(shown), [path for path, *_ in settings()])
    )
    return near or f"; known are {', '.join(known)}"


def _close(word: str, known: list[str]) -> str:
    match = difflib.get_close_matches(word, known, 1, 0.6)
    return f"; did you mean {match[0]}?" if match else ""
