"""Every setting of every public class and function refuses what it cannot be, in one sentence that
names it.

Settings are read from signatures: a new one is tried with all wrong values, and must say here what
it does take.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from torch import nn

from fedmix import (
    BadInput,
    Balance,
    DPFedAvg,
    Exchange,
    Federation,
    FedMix,
    GlobalMix,
    Head,
    Hidden,
    LocalMix,
    MeanMix,
    NaiveMix,
    Proximal,
    RestrictedMix,
    Supervised,
    Training,
    data,
    models,
    objectives,
    record,
)
from fedmix.core.rng import stream
from fedmix.data import FederatedData, HeldOut, Ragged, from_arrays, partition
from fedmix.data.transforms import Images, OneHot, Plain
from fedmix.objectives.base import Sum
from fedmix.objectives.fedlc import FedLC
from fedmix.objectives.fedrs import FedRS
from fedmix.privacy import calibrated, guarantee, guarantee_of, sensitivity
from fedmix.server_steps import FedAdam, FedAvgM, FedYogi
from fedmix.training.engines import Sequential, Vectorised

X, Y = np.random.default_rng(0).standard_normal((12, 2)), np.arange(12) % 3
PAIRS = list(zip(X, Y, strict=True))
WRONG: dict[str, Any] = {
    "True": True, "text": "3", "None": None, "1.5": 1.5, "nan": math.nan, "inf": math.inf, "-1": -1,
    "list": [3], "array": np.array([3]),
}  # fmt: skip
NUMBER = {"1.5"}  # what a positive number of any size may be
SEED = stream(0, "tests")


class Subject(NamedTuple):
    """What is called, with what else, and which of WRONG its settings take."""

    call: Callable[..., Any]
    good: dict[str, Any]
    takes: Mapping[str, set[str]] = {}

    def settings(self) -> Iterator[str]:
        for name, parameter in inspect.signature(self.call).parameters.items():
            if name != "self" and parameter.kind not in (
                parameter.VAR_POSITIONAL,
                parameter.VAR_KEYWORD,
            ):
                yield name


def arrays(**changed: Any) -> FederatedData:
    given: dict[str, Any] = {
        "x": X,
        "y": Y,
        "clients": [[0, 1, 2], [3, 4, 5, 6], [7, 8]],
        "test": (X, Y),
        "classes": 3,
    }
    return from_arrays(**(given | changed))


def federation(**changed: Any) -> Federation:
    given: dict[str, Any] = {
        "module": models.initialised(lambda: nn.Linear(2, 3), 0),
        "data": arrays(),
        "objective": FedMix(0.1),
        "training": Training(2),
    }
    return Federation(**(given | changed))


def trained(rounds: Any = 1, evaluate_every: Any = 1) -> list[Any]:
    return list(federation().run(rounds, evaluate_every=evaluate_every))


def promised(delta: Any = 1e-5, neighbours: Any = "replace", level: Any = "sample") -> Any:
    run = federation(exchange=Exchange(clip=1.0, noise=1.0))
    return guarantee_of(run, delta, neighbours=neighbours, level=level)


def promised_nothing(delta: Any = 1e-5, neighbours: Any = "replace", level: Any = "sample") -> Any:
    return guarantee_of(federation(), delta, neighbours=neighbours, level=level)


def recorded(
    federation: Any, folder: Any, rounds: Any, evaluate_every: Any, target: Any, quiet: Any
) -> Any:
    return record(
        federation, folder, rounds, evaluate_every=evaluate_every, target=target, quiet=quiet
    )


def vectorised(device: Any, precision: Any, chunk: Any, compile: Any) -> Any:
    engine = Vectorised(device=device, precision=precision, chunk=chunk, compile=compile)
    return federation(engine=engine)


def sequential(device: Any, precision: Any) -> Any:
    return federation(engine=Sequential(device=device, precision=precision))


CLIPPED, ROWS = Exchange(clip=1.0, noise=1.0), Ragged.of([[0, 1], [2]])
ENGINE: dict[str, Any] = {"device": "cpu", "precision": "tf32"}
HUB = {"root": {"None", "text"}, "cache": {"None", "text"}}
STORED: dict[str, Any] = {
    "x": X, "y": Y, "clients": ROWS, "test": HeldOut(X, Y), "classes": 3,
}  # fmt: skip
NAMED = {
    "x": "training inputs", "y": "training .*labels", "test": "test",
    "module": "the model", "partition": "no partition",
    "normalise": "no normalisation", "how": "initialisation|partition|how",
    "classes_per_client": "classes per client|classes_per_client", "local_share": "share",
    "clients": "client", "per_client": "per client", "fraction": "share", "precision": "precision",
    "engine": "engine", "federation": "recorded", "count": "cannot take|count",
    "owner_ids": "owner",
}  # fmt: skip
DEALT: dict[str, Any] = {"labels": Y, "clients": 3, "rng": SEED}
KNOWN = {"counts": {"True"}, "samples": {"True"}, "state": {"None"}}
MADE = {"labels", "rng", "index", "model"}  # what is passed on from inside

SUBJECTS = [
    Subject(Exchange, {}, {
        "m": set(), "noise": NUMBER, "wait": set(), "clip": {"None", *NUMBER},
        "label_clip": {"None"}, "label_noise": {"None"}, "exclude_own": {"True"},
        "secure": {"None"},
    }),
    Subject(Exchange, {"clip": 1.0, "label_clip": 1.0, "label_noise": 1.0}, {
        "noise": NUMBER, "clip": NUMBER, "label_clip": NUMBER, "label_noise": NUMBER,
        "exclude_own": {"True"}, "secure": {"None"},
    }),
    Subject(Training, {"clients_per_round": 2},
        {"lr": NUMBER, "lr_decay": NUMBER, "weight_decay": NUMBER}),
    Subject(FedMix, {"lam": 0.1}, {"third": NUMBER, "alpha": {"None"}}),
    Subject(NaiveMix, {"lam": 0.1}, {"alpha": {"None"}}),
    Subject(NaiveMix, {"alpha": 1.0}, {"lam": {"None"}, "alpha": NUMBER}),
    Subject(MeanMix, {}, {"alpha": NUMBER}),
    Subject(RestrictedMix, {"lam": 0.1}, {"alpha": {"None"}}),
    Subject(Balance, {"weight": 1.0}, {"weight": NUMBER}),
    Subject(LocalMix, {"alpha": 1.0}, {"alpha": NUMBER, "lam": {"None"}}),
    Subject(GlobalMix, {"lam": 0.5}, {"alpha": {"None"}}),
    Subject(Hidden, {"objective": FedMix(0.1), "layer": 1}),
    Subject(Proximal, {"mu": 0.1}, {"mu": NUMBER}),
    Subject(Sum, {"first": Supervised(), "second": Proximal(0.1)}),
    Subject(objectives.Needs, {}, {
        "means": {"None"}, "partner": {"None"}, "alpha": {"None", *NUMBER}, "each": {"True"},
    } | KNOWN),
    Subject(Federation, {
        "module": nn.Linear(2, 3), "data": arrays(), "objective": FedMix(0.1),
        "training": Training(2),
    }, {
        "exchange": {"None"}, "loss": {"None"}, "changes": {"None"}, "choose": {"None"},
        "engine": {"None"}, "server": {"None"}, "metrics": {"None"},
        "head": {"None"}, "updates": {"None"},
    }),
    Subject(trained, {}),
    Subject(promised, {}),
    Subject(promised_nothing, {}),
    Subject(recorded, {
        "federation": federation(), "folder": "never", "rounds": 1, "evaluate_every": 1,
        "target": None, "quiet": True,
    }, {"folder": {"text"}, "target": {"None", "-1", *NUMBER}, "quiet": {"True"}}),
    Subject(vectorised, ENGINE | {"chunk": 1, "compile": False},
        {"chunk": {"None"}, "compile": {"None", "True"}}),
    Subject(sequential, ENGINE),
    Subject(DPFedAvg, {"clip": 1.0}, {"clip": NUMBER, "noise_multiplier": NUMBER}),
    Subject(Head, {"clip": 1.0},
        {"clip": NUMBER | {"None"}, "noise": NUMBER, "since": {"None"}}),
    Subject(FedAvgM, {}, {"lr": NUMBER}),
    Subject(FedAdam, {}, {"lr": NUMBER, "tau": NUMBER}),
    Subject(FedYogi, {}, {"lr": NUMBER, "tau": NUMBER}),
    Subject(FedLC, {}, {"tau": NUMBER}),
    Subject(FedRS, {}),
    Subject(guarantee, {"how": CLIPPED, "group": 5}, {"nonnegative": {"True"}}),
    Subject(calibrated, {"how": CLIPPED, "epsilon": 1.0, "group": 5},
        {"epsilon": NUMBER, "nonnegative": {"True"}}),
    Subject(sensitivity, {"clip": 1.0, "group": 5}, {"clip": NUMBER, "nonnegative": {"True"}}),
    Subject(from_arrays, {"x": X, "y": Y, "clients": [[0], [1]], "test": (X, Y), "classes": 3}, {
        "classes": {"None"}, "private": {"True"}, "name": {"text"}, "test_clients": {"None"},
        "transform": {"None"},
    }),
    Subject(data.from_datasets, {"datasets": [PAIRS, PAIRS], "test": PAIRS, "classes": 3}, {
        "classes": {"None"}, "private": {"True"}, "name": {"text"}, "test_clients": {"None"},
        "transform": {"None"}, "columns": {"None"},
    }),
    Subject(FederatedData, STORED, {
        "classes": {"None"}, "test": {"None"}, "private": {"True"}, "name": {"text"},
        "names": {"None"},
    }),
    Subject(data.alone, {"x": X, "y": Y, "classes": 3},
        {"classes": {"None"}, "transform": {"None"}, "name": {"text"}}),
    Subject(Plain, {}),
    Subject(Images, {"mean": (0.5,), "std": (0.2,)},
        {"invert": {"True"}, "mean": {"list"}, "std": {"list"}}),
    Subject(OneHot, {"size": 4}),
    Subject(data.digits, {}, {"alpha": {"None"}}),
    Subject(data.digits, {"partition": "dirichlet", "alpha": 0.5}, {"alpha": NUMBER}),
    Subject(data.cifar10, {"root": "nowhere"},
        {"alpha": {"None"}, "samples_per_client": {"None"}, "augment": {"True"}} | HUB),
    Subject(data.cifar100, {"root": "nowhere"},
        {"alpha": {"None"}, "samples_per_client": {"None"}, "augment": {"True"}} | HUB),
    Subject(data.femnist, {"root": "nowhere"}, HUB),
    Subject(data.shakespeare, {"root": "nowhere"}, {"cap": {"None"}} | HUB),
    Subject(data.diabetes, {}),
    Subject(partition.spread, DEALT | {"how": "classes", "classes_per_client": 2, "alpha": None},
        {"alpha": {"None"}}),
    Subject(partition.by_classes, DEALT | {"per_client": 2}, {"balanced": {"True"}}),
    Subject(partition.shards, DEALT | {"per_client": 2}),
    Subject(partition.dirichlet, DEALT | {"alpha": 1.0}, {"alpha": NUMBER}),
    Subject(partition.iid, {"count": 12, "clients": 3, "rng": SEED}),
    Subject(partition.share, {"index": ROWS, "fraction": 0.5, "rng": SEED}),
    Subject(partition.subset, {"labels": Y, "count": 6, "rng": SEED}),
    Subject(models.initialised, {"build": lambda: nn.Linear(2, 3), "seed": 0}),
    Subject(stream, {"seed": 0, "purpose": "tests"}, {"purpose": set(WRONG)}),
]  # fmt: skip


def cases() -> Iterator[Any]:
    for subject in SUBJECTS:
        for setting in subject.settings():
            wrong = set(WRONG) - subject.takes.get(setting, set()) if setting not in MADE else set()
            for name in sorted(wrong):
                yield pytest.param(
                    subject, setting, WRONG[name], id=f"{subject.call.__name__}-{setting}-{name}"
                )


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("subject", "setting", "wrong"), list(cases()))
def test_what_a_setting_cannot_be_is_refused(subject: Subject, setting: str, wrong: Any) -> None:
    with pytest.raises(BadInput, match=NAMED.get(setting, setting)) as caught:
        subject.call(**(subject.good | {setting: wrong}))
    said = str(caught.value)
    assert "\n" not in said
    assert len(said) < 300


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda s: s.call.__name__)
def test_the_rest_of_the_call_is_right(subject: Subject) -> None:
    """So that a refusal above is that of the wrong setting."""
    if subject.call in (data.cifar10, data.cifar100, data.femnist, data.shakespeare):
        return  # which have no data here
    subject.call(**subject.good)


def test_every_public_class_and_function_is_tried() -> None:
    """But those whose arguments are no settings."""
    tried = {subject.call for subject in SUBJECTS} | {record}
    others = {
        objectives.Objective,
        objectives.Supervised,
        objectives.Phase,
        objectives.batch_mean,
        objectives.Algorithm,
        objectives.ClientState,
        objectives.Scaffold,
        HeldOut,  # whose arrays FederatedData checks
        Ragged,
        data.own,
        partition.natural,
    }
    public = [getattr(module, name) for module in (data, objectives) for name in module.__all__]
    public += [
        f
        for f in vars(partition).values()
        if inspect.isfunction(f) and not f.__name__.startswith(("_", "check"))
    ]
    from_here = [
        p
        for p in public
        if callable(p) and (not inspect.isfunction(p) or p.__module__.startswith("fedmix.data."))
    ]
    assert {
        p for p in from_here if getattr(p, "__module__", "") != "fedmix.core.validation"
    } - tried - others == set()


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int64, np.uint64])
def test_integers_of_numpy_count_as_whole_numbers(kind: Any) -> None:
    """Also those that would overflow in what is worked out of them."""
    settings = Training(kind(2), epochs=kind(100), batch_size=kind(1))
    assert settings.steps(7) == 700
    plain = [r.local_loss for r in federation(training=Training(2, epochs=2, batch_size=2)).run(2)]
    small = Training(kind(2), epochs=kind(2), batch_size=kind(2))
    assert [
        r.local_loss
        for r in federation(training=small, seed=kind(0), engine=Vectorised(chunk=kind(1))).run(
            kind(2)
        )
    ] == plain
    how = Exchange(m=kind(1), cutoff=kind(1), average=kind(2))
    assert how.group_sizes(np.array([3, 400])).tolist() == [1, 1]
    list(federation(exchange=how).run(1))


def test_floats_of_numpy_count_as_numbers() -> None:
    assert Exchange(m=np.float32(0.25)).group_sizes(np.array([8])).tolist() == [2]  # type: ignore[arg-type]
    assert Training(1, lr=np.float32(0.5)).rate(0) == 0.5  # type: ignore[arg-type]
    assert FedMix(np.float32(0.5)).lam == 0.5  # type: ignore[arg-type]


def test_more_samples_in_a_mean_than_integers_hold_is_too_many() -> None:
    with pytest.raises(BadInput, match="is more than the 3 samples of client 0"):
        list(federation(exchange=Exchange(m=10**30)).run(1))
