"""Record a federation that a script made, of its own data, model or objective, in a run folder.

Its experiment.toml only describes what fedmix cannot make by itself. The hashes in [recorded]
detect that another federation is given for the same folder.
"""

import hashlib
import inspect
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch

from fedmix.core.errors import BadInput, Interrupted, described
from fedmix.core.files import read_toml
from fedmix.core.registry import OBJECTIVES, SERVER_STEPS
from fedmix.core.validation import flag, instance, is_number, shown, whole
from fedmix.data.federated import digest
from fedmix.experiment.values import LARGEST, algorithm_of
from fedmix.objectives import Hidden, Objective, Proximal
from fedmix.objectives.base import Function, Sum, Weighted, parts, titled
from fedmix.runs.interrupt import finish_round_on_ctrl_c
from fedmix.runs.notebook import NotebookProgress
from fedmix.runs.progress import Progress, console
from fedmix.runs.run import RunFolder, kept
from fedmix.runs.summary import Summary
from fedmix.runs.trackers import tracking
from fedmix.server_steps import FedAvg, ServerStep
from fedmix.training.federation import Federation
from fedmix.training.rounds import Rounds
from fedmix.training.settings import Training

NAMES = {kind: name for name, kind in OBJECTIVES.items()}
STEPS = {kind: name for name, kind in SERVER_STEPS.items()}
ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # in the default repr of an object


def record(
    federation: Federation,
    folder: str | Path,
    rounds: int,
    *,
    evaluate_every: int = 1,
    target: float | None = None,
    track: str = "",
    quiet: bool = False,
) -> Summary:
    """Train a federation up to round `rounds` in a run folder, from the checkpoint there if any.

    Ctrl-C stops after the current round, with a checkpoint. A script that makes the same federation
    again continues from there, also to more rounds than before. Afterwards `federation` is as if it
    had been trained in one go.

    Args:
        federation: A new federation.
        folder: The run folder; made if it does not exist.
        rounds: Number of rounds in all.
        evaluate_every: Rounds between two evaluations.
        target: Score to which rounds are counted.
        track: Names of trackers that are told of every round, split by commas: tensorboard, wandb,
            mlflow.
        quiet: Show no progress.

    Returns:
        The summary of the run: a dict, with `history` and `plot()` for the metrics by round.

    Raises:
        BadInput: An argument is wrong, or the folder holds another run or cannot be used.
        KeyboardInterrupt: Ctrl-C was pressed.
        Diverged, Collapsed: Training failed; failure.json records it.
    """
    if not isinstance(federation, Federation):
        raise BadInput(f"what is to be recorded is {described(federation)}; give a Federation")
    for name, value in (("rounds", rounds), ("evaluate_every", evaluate_every)):
        whole(name, value)
    if target is not None and not (is_number(target) and math.isfinite(target)):
        raise BadInput(
            f"target={shown(target)} is no number; give the score to reach, or leave it out"
        )
    instance("folder", folder, (str, os.PathLike), "give the path of a folder")
    instance("track", track, str, "give names of trackers, split by commas")
    flag("quiet", quiet)
    if federation.round:
        raise BadInput(
            f"this federation has done {federation.round} rounds; record a new one, which goes on "
            f"from {folder}"
        )
    target = None if target is None else float(target)
    spec = Recorded(
        int(rounds), int(evaluate_every), target, federation.training, settings_of(federation)
    )
    title = f"{federation.data.name} {spec.algorithm} seed {federation.seed}"
    run = Recording(spec, Path(folder), federation)
    notebook = console().is_jupyter and not quiet
    with (
        finish_round_on_ctrl_c() as stopped,
        NotebookProgress(title, spec, run.begun())
        if notebook
        else Progress(title, spec, run.begun(), quiet=quiet) as progress,
        tracking(track, run.folder, spec.values(), progress.update) as listen,
    ):
        try:
            summary = run.execute(listen, begin=progress.begin, stopped=stopped)
        except Interrupted:
            said = f"stopped after round {federation.round}; run the same again to go on"
            # a script that loops over runs does not take this for a failed run
            raise KeyboardInterrupt(said) from None
    if "warning" in summary:
        progress.note(summary["warning"])
    return summary


@dataclass(frozen=True)
class Recorded:
    """Settings of a federation that no experiment describes, with its data and model as hashes."""

    rounds: int
    evaluate_every: int
    target: float | None
    training: Training
    settings: dict[str, Any]

    @property
    def algorithm(self) -> str:
        """Name of the algorithm."""
        return algorithm_of(self.settings)

    @property
    def per_round(self) -> int:
        """How many clients train in a round."""
        return self.training.per_round(self.settings["data"]["clients"])

    @property
    def identity(self) -> str:
        """Hash of the settings that may not change when the run continues."""
        return _hash(sorted(kept(self.values()).items()))

    def values(self) -> dict[str, Any]:
        """Return all settings as experiment.toml holds them."""
        run = {"rounds": self.rounds, "evaluate_every": self.evaluate_every, "target": self.target}
        return _plain(run | self.settings)


class Recording(RunFolder):
    """A run folder in which a given federation trains."""

    def __init__(self, spec: Recorded, folder: Path, federation: Federation) -> None:
        super().__init__(spec, folder)
        self.federation = federation

    def finished(self) -> None:
        """Return None always: if all rounds are done, the federation still has to be restored."""

    def _build(self, root: Path | None) -> Rounds:  # noqa: ARG002 - only experiments load data
        return self.federation

    def _there(self) -> dict[str, Any]:
        path, advice = self.folder / "experiment.toml", "restore it, or choose another folder"
        values = read_toml(path, LARGEST, advice)
        if type(values.get("rounds")) is not int:
            raise BadInput(f"{path} does not say how many rounds; {advice}")
        return values


def settings_of(federation: Federation) -> dict[str, Any]:
    """Return all that a federation depends on as plain values.

    Hashes stand for samples, layers, weights and functions.
    """
    data, model, exchange = federation.data, federation.model, federation.exchange
    params = {name: p.detach().cpu() for name, p in federation.params.items()}
    kinds = [(name, p.shape, p.dtype, name in model.trained) for name, p in params.items()]
    rows = [data.clients, data.held_out.clients] if data.held_out.clients else [data.clients]
    functions = [p.function for p in parts(federation.objective) if isinstance(p, Function)]
    return {
        "seed": federation.seed,
        "data": {
            "name": data.name, "clients": len(data.clients), "samples": len(data.clients.flat),
            "test_samples": len(data.held_out.x), "shape": str(data.input_shape),
            "classes": data.classes, "transform": _text(data.transform),
            "changes": federation.changes is not None,
        },
        "model": {
            "name": type(model.module).__name__,
            "parameters": sum(p.numel() for p in params.values()), "loss": model.loss.name,
            "layers": _hash(_text(model.module), kinds),
        },
        "objective": _objective(federation.objective),
        "training": asdict(federation.training),
        **({"exchange": asdict(exchange.how)} if exchange else {}),
        **_server(federation.server),
        **({"updates": asdict(federation.updates)} if federation.updates else {}),
        **({"head": {"name": "lda", **asdict(federation.head)}} if federation.head else {}),
        "engine": {"name": federation.engine.name, **asdict(federation.engine)},
        "recorded": {
            "samples": _hash(digest(
                data.x, data.y, data.held_out.x, data.held_out.y,
                *(a for r in rows for a in (r.flat, r.offsets)),
            )),
            "initial_weights": _hash(digest(
                *(p.reshape(-1).view(torch.uint8).numpy() for p in params.values())
            )),
            **({"functions": _hash(_told(functions))} if functions else {}),
            **({"changes": _hash(_told(federation.changes))} if federation.changes else {}),
            **({"choose": _hash(_told(federation.choose))} if federation.choose else {}),
        },
    }  # fmt: skip


def _told(value: Any, known: frozenset[int] = frozenset()) -> Any:
    """Describe a function by plain values: its name, its code, and the variables that it uses.

    Functions of other modules are described by their names, since their code is not the script's.
    """
    if id(value) in known:  # a recursive function
        return "again"
    known |= {id(value)}

    def all_of(values: Iterable[Any]) -> list[Any]:
        return [_told(v, known) for v in values]

    match value:
        case FunctionType():
            here, around = value.__module__, inspect.getclosurevars(value)
            outer = {
                name: _text(v) if callable(v) and getattr(v, "__module__", here) != here else v
                for name, v in [*around.nonlocals.items(), *around.globals.items()]
                if not inspect.ismodule(v)
            }
            return [
                value.__qualname__,
                *all_of([value.__code__, value.__defaults__, value.__kwdefaults__, outer]),
            ]
        case CodeType():
            return [value.co_code, value.co_names, *all_of(value.co_consts)]
        case MethodType():
            return all_of([value.__func__, value.__self__])
        case partial():
            return all_of([value.func, value.args, value.keywords])
        case Mapping():
            return sorted(((str(k), _told(v, known)) for k, v in value.items()), key=itemgetter(0))
        case list() | tuple():
            return all_of(value)
        case set() | frozenset():
            return sorted(map(str, value))
        case np.ndarray() if value.dtype != object:
            return digest(value)
        case torch.Tensor():
            return digest(value.detach().cpu().numpy())
    call = vars(type(value)).get("__call__")
    if isinstance(call, FunctionType) or (is_dataclass(value) and not inspect.isclass(value)):
        held = (
            {f.name: getattr(value, f.name) for f in fields(value)}
            if is_dataclass(value)
            else vars(value)
        )
        return [type(value).__qualname__, *all_of([call, held])]
    return _text(value)


def _objective(objective: Objective) -> dict[str, Any]:
    """Describe an objective as an experiment does: name, parameters, μ and layer.

    The name of an unknown objective is that of its class.
    """
    if type(objective) is Sum:
        first, second = _objective(objective.first), _objective(objective.second)
        if type(objective.second) is Proximal and not first.get("mu"):
            return first | {"mu": objective.second.mu}
        return {"name": f"{first['name']}+{second['name']}", "first": first, "second": second}
    if type(objective) is Weighted:
        inner = _objective(objective.objective)
        return {"name": f"{objective.weight:g}*{inner['name']}", "first": inner}
    if type(objective) is Hidden:
        return _objective(objective.objective) | {"layer": objective.layer}
    inner = {
        name: _objective(value)
        for name, value in vars(objective).items()
        if isinstance(value, Objective)
    }
    named = {"name": NAMES.get(type(objective), titled(objective))}
    return named | {"mu": 0.0, "layer": 0} | vars(objective) | inner | named


def _server(step: ServerStep) -> dict[str, Any]:
    """Describe a server step as an experiment does; nothing for FedAvg, the default."""
    if type(step) is FedAvg:
        return {}
    return {"server": vars(step) | {"name": STEPS.get(type(step), type(step).__name__)}}


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the values that a TOML file can hold."""
    numbers = {
        str(name): value.item() if isinstance(value, np.generic) else value
        for name, value in values.items()
    }
    simple = {
        name: value
        for name, value in numbers.items()
        if isinstance(value, bool | int | float | str)
    }
    return simple | {
        name: _plain(value) for name, value in numbers.items() if isinstance(value, dict)
    }


def _text(value: object) -> str:
    return ADDRESS.sub("", repr(value))


def _hash(*values: object) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()[:10]
