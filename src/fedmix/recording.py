"""A federation of your own, made by a script, in a run folder: shown as it trains, stopped and gone on with, reported.

What fedmix cannot make again is described in experiment.toml, and [recorded] has hashes of it, so that no other takes its place.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedmix.cli.commands import ctrl_c, tell_warnings
from fedmix.cli.progress import Progress
from fedmix.data.federated import digest
from fedmix.errors import BadInput
from fedmix.experiment import LARGEST, OBJECTIVES, algorithm
from fedmix.federation import Federation, Rounds
from fedmix.files import read_toml
from fedmix.objectives import Hidden, Objective, Proximal
from fedmix.objectives.base import Sum
from fedmix.runs import Interrupted, RunFolder, kept
from fedmix.training import Training

NAMES = {kind: name for name, kind in OBJECTIVES.items()}
ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # in what Python shows of an object that does not say what it is


def record(
    federation: Federation,
    folder: str | Path,
    rounds: int,
    *,
    evaluate_every: int = 1,
    target: float | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Train until round `rounds` is done, in a run folder, from where that was left; the summary.

    Ctrl-C ends it after the round that is running, with a checkpoint. The same script goes on from there, once more when it asks
    for more rounds; it has to make the same federation. Afterwards `federation` is as if it had been trained in one go. `target`
    is the score to which rounds are counted.
    """
    for name, value in (("rounds", rounds), ("evaluate_every", evaluate_every)):
        if value < 1 or value % 1:
            raise BadInput(f"{name}={value} must be at least 1, and a whole number")
    if not isinstance(target, Real | None):
        raise BadInput(f"target={target!r} is no number; give the score to reach, or leave it out")
    if federation.round:
        raise BadInput(f"this federation has done {federation.round} rounds; record a new one, which goes on from {folder}")
    spec = Recorded(int(rounds), int(evaluate_every), target, federation.training, described(federation))
    title = f"{federation.data.name} {spec.algorithm} seed {federation.seed}"
    with ctrl_c() as stopped, Progress(title, spec, "1/1", quiet=quiet) as progress:
        try:
            summary = Recording(spec, Path(folder), federation).execute(progress.update, stopped=stopped)
        except Interrupted:
            said = f"stopped after round {federation.round}; run the same again to go on"
            raise KeyboardInterrupt(said) from None  # which no loop over runs takes for a run that failed
    if not quiet:
        tell_warnings({str(folder): summary})
    return summary


@dataclass(frozen=True)
class Recorded:
    """What stands for an experiment where there is none: the settings of a federation, with its data and model described."""

    rounds: int
    evaluate_every: int
    target: float | None
    training: Training
    sections: dict[str, dict[str, Any]]

    @property
    def algorithm(self) -> str:
        return algorithm(self.sections)

    @property
    def identity(self) -> str:
        return _hash(sorted(kept(self.values()).items()))

    def values(self) -> dict[str, Any]:
        run = {"rounds": self.rounds, "evaluate_every": self.evaluate_every, "target": self.target}
        return _plain(run | self.sections)


class Recording(RunFolder):
    """A run folder in which a given federation trains."""

    def __init__(self, spec: Recorded, folder: Path, federation: Federation) -> None:
        super().__init__(spec, folder)
        self.federation = federation

    def finished(self) -> None:
        """Never, since the federation is wanted as well: where all rounds are done it is restored, and trains no more."""

    def _build(self, root: Path | None) -> Rounds:  # noqa: ARG002 - only experiments look for data
        return self.federation

    def _there(self) -> dict[str, Any]:
        path, advice = self.folder / "experiment.toml", "restore it, or choose another folder"
        values = read_toml(path, LARGEST, advice)
        if type(values.get("rounds")) is not int:
            raise BadInput(f"{path} does not say how many rounds; {advice}")
        return values


def described(federation: Federation) -> dict[str, Any]:
    """All that a federation depends on, as far as plain values can say it; hashes stand for samples, layers and weights."""
    data, model, exchange = federation.data, federation.model, federation.exchange
    params = {name: p.detach().cpu() for name, p in federation.params.items()}
    kinds = [(name, p.shape, p.dtype, name in model.trained) for name, p in params.items()]
    rows = [data.clients, data.test_clients] if data.test_clients else [data.clients]
    return {
        "seed": federation.seed,
        "data": {
            "name": data.name, "clients": len(data.clients), "samples": len(data.clients.flat), "classes": data.classes,
            "shape": str(data.input_shape), "tests": len(data.test_x), "transform": _text(data.transform),
            "changes": federation.changes is not None,
        },
        "model": {
            "name": type(model.module).__name__, "parameters": sum(p.numel() for p in params.values()),
            "loss": model.loss.name, "layers": _hash(_text(model.module), kinds),
        },
        "objective": _objective(federation.objective),
        "training": asdict(federation.training),
        **({"exchange": asdict(exchange.how)} if exchange else {}),
        "engine": federation.runs_on,
        "recorded": {
            "samples": _hash(digest(data.x, data.y, data.test_x, data.test_y, *(a for r in rows for a in (r.flat, r.offsets)))),
            "initial_weights": _hash(digest(*(p.reshape(-1).view(torch.uint8).numpy() for p in params.values()))),
        },
    }  # fmt: skip


def _objective(objective: Objective) -> dict[str, Any]:
    """An objective as an experiment has it: its name, parameters, μ and layer. Others are called by their class."""
    if isinstance(objective, Sum):
        first, second = _objective(objective.first), _objective(objective.second)
        if isinstance(objective.second, Proximal) and not first.get("mu"):
            return first | {"mu": objective.second.mu}
        return {"name": f"{first['name']}+{second['name']}", "first": first, "second": second}
    if isinstance(objective, Hidden):
        return _objective(objective.objective) | {"layer": objective.layer}
    inner = {name: _objective(value) for name, value in vars(objective).items() if isinstance(value, Objective)}
    return {"mu": 0.0, "layer": 0} | vars(objective) | inner | {"name": NAMES.get(type(objective), type(objective).__name__)}


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """What of these values a TOML file can hold."""
    numbers = {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}
    simple = {name: value for name, value in numbers.items() if isinstance(value, bool | int | float | str)}
    return simple | {name: _plain(value) for name, value in numbers.items() if isinstance(value, dict)}


def _text(value: object) -> str:
    return ADDRESS.sub("", repr(value))


def _hash(*values: object) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()[:10]
