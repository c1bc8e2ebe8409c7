"""Sections of an experiment, made from the functions and classes that they build.

So each field and default has one source.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
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

from fedmix.core.extras import needed
from fedmix.core.registry import DATA, MODELS, OBJECTIVES, SERVER_STEPS
from fedmix.exchange import Exchange
from fedmix.kernels.precision import Precision
from fedmix.models.initialise import Initialisation
from fedmix.training.dpfedavg import DPFedAvg
from fedmix.training.engines import Vectorised
from fedmix.training.head import Head
from fedmix.training.settings import Training

with needed("fedmix.experiment", "cli"):
    from pydantic import BaseModel, ConfigDict, Discriminator, Field, create_model

SIZES = ("classes", "inputs", "outputs")  # arguments of models that follow from the data


class Section(BaseModel):
    """A part of an experiment that is read from TOML: frozen, and strict about types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, protected_namespaces=())


def _section(
    name: str | None, build: Callable[..., Any], *, skip: tuple[str, ...] = (), **more: Any
) -> type[Section]:
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
    return create_model(title, __base__=Section, __doc__=inspect.getdoc(build), **fields, **more)


def _union(sections: Mapping[str, type[Section]]) -> Any:
    union: Any = Union[tuple(sections.values())]  # noqa: UP007 - built from a list
    return Annotated[union, Discriminator("name")]


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
UpdatesSection = _section(None, DPFedAvg)
HeadSection = _section("lda", Head)  # the name is required, so that a head with defaults has an id
if TYPE_CHECKING:  # their fields are known at run time only
    DataSpec: TypeAlias = Any
    ModelSpec: TypeAlias = Any
    ObjectiveSpec: TypeAlias = Any
    TrainingSpec: TypeAlias = Any
    ExchangeSpec: TypeAlias = Any
    ServerSpec: TypeAlias = Any
    UpdatesSpec: TypeAlias = Any
    HeadSpec: TypeAlias = Any
else:
    DataSpec, ModelSpec, ObjectiveSpec = (
        _union(DATA_SECTIONS),
        _union(MODEL_SECTIONS),
        _union(OBJECTIVE_SECTIONS),
    )
    TrainingSpec, ExchangeSpec = TrainingSection, ExchangeSection
    ServerSpec = _union(SERVER_SECTIONS)
    UpdatesSpec, HeadSpec = UpdatesSection, HeadSection


class EngineSection(Section):
    """Where and how clients run."""

    name: Literal["vectorised", "sequential"] = "vectorised"
    device: str = Vectorised.device
    chunk: Annotated[int, Field(ge=1)] | None = Vectorised.chunk
    compile: bool | None = Vectorised.compile
    precision: Precision = Vectorised.precision
    processes: Annotated[int, Field(ge=1)] | None = None  # that `fedmix run` and `resume` start


def fields_of(
    section: type[Section], prefix: str, name: str
) -> Iterator[tuple[str, str, Any, str]]:
    """Yield each field's dotted path, type, default, and the section's `name`."""
    for field, info in section.model_fields.items():
        if field != "name" or not name:
            default = "(required)" if info.is_required() else info.default
            yield prefix + field, type_name(info.annotation), default, name


def type_name(annotation: Any) -> str:
    """Write a type as a user would."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_name(parts[0])
    if origin in (Union, UnionType):
        return " | ".join(type_name(part) for part in parts)
    if origin is Literal:
        return " | ".join(repr(part) for part in parts)
    if annotation is NoneType:
        return "None"
    return annotation.__name__ if inspect.isclass(annotation) and not parts else str(annotation)
