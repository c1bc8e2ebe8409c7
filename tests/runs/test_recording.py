"""A script's own federation in a run folder: stopped, gone on with, told from others, reported."""

import json
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from fedmix import (
    BadInput,
    Exchange,
    Federation,
    FedMix,
    Hidden,
    Objective,
    Proximal,
    Supervised,
    Training,
    data,
    record,
)
from fedmix.cli.app import app
from fedmix.core.types import Batch, Params
from fedmix.models import Model, initialised
from fedmix.objectives import batch_mean
from fedmix.objectives.base import as_objective
from fedmix.report import load_runs
from fedmix.report.groups import grouped
from fedmix.runs.progress import Progress
from fedmix.training.engines import Sequential
from tests.runs.test_runs import same_run

TRAINING = Training(clients_per_round=3, epochs=2, batch_size=4, lr=0.1, momentum=0.5)


def small(dropout: float = 0.1, width: int = 5) -> nn.Module:
    return nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 2))


def arrays(clients: int = 4, flip: int = 0) -> data.FederatedData:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3))
    y = (x[:, 0] > 0).astype(int)
    y[:flip] = 1 - y[:flip]
    rows = np.array_split(np.arange(40), clients)
    return data.from_arrays(x[:40], y[:40], rows, (x[40:], y[40:]), classes=2, name="mine")


def federation(
    seed: int = 0,
    objective: Objective | None = None,
    net: nn.Module | None = None,
    samples: data.FederatedData | None = None,
    **more: Any,
) -> Federation:
    objective = objective or FedMix(lam=0.1)
    how = Exchange(m=5) if objective.needs.means else None
    net = net or initialised(small, seed)
    return Federation(
        net, samples or arrays(), objective, TRAINING, seed=seed, **({"exchange": how} | more)
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Federation, dict[str, Any]]:
    """A run of six rounds that nothing happened to."""
    folder, trained = tmp_path_factory.mktemp("recorded") / "whole", federation()
    return folder, trained, record(trained, folder, rounds=6, target=0.5, quiet=True)


def test_stopped_and_gone_on_with_it_ends_the_same(
    tmp_path: Path, whole: tuple[Path, Federation, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in mid-run, then the end, then what is done already, then more rounds: each time the
    weights of a plain run.
    """
    tell = Progress.update

    def interrupt(self: Progress, line: dict[str, Any]) -> None:
        tell(self, line)
        if line["round"] == 1:
            signal.raise_signal(signal.SIGINT)

    handler = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patched:
        patched.setattr(Progress, "update", interrupt)
        with pytest.raises(
            KeyboardInterrupt, match="stopped after round 2; run the same again to go on"
        ):
            record(federation(), tmp_path, rounds=4, target=0.5)
    assert not (tmp_path / "summary.json").exists()
    assert signal.getsignal(signal.SIGINT) is handler
    first = record(federation(), tmp_path, rounds=4, target=0.5)
    done = federation()
    assert record(done, tmp_path, rounds=4, target=0.5) == first
    plain = federation()
    scores = [r.metrics for r in plain.run(4)]
    assert done.round == 4
    assert first["last"] == (scores[-1] or {})["accuracy"]
    assert done.traffic == plain.traffic
    assert done.watch.tested == plain.watch.tested
    assert all(torch.equal(done.params[n], plain.params[n]) for n in plain.params)
    longer = federation()
    summary = record(longer, tmp_path, rounds=6, target=0.5)
    folder, trained, expected = whole
    assert same_run(tmp_path, folder)
    assert {k: v for k, v in summary.items() if k != "seconds"} == {
        k: v for k, v in expected.items() if k != "seconds"
    }
    assert all(torch.equal(longer.params[n], trained.params[n]) for n in trained.params)
    assert json.loads((tmp_path / "clients.json").read_text())["sizes"] == [10, 10, 10, 10]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"objective": FedMix(lam=0.2)}, r"objective.lam is 0.1 there and 0.2 here"),
        ({"seed": 1, "net": initialised(small, 0)}, r"seed is 0 there and 1 here"),
        ({"exchange": Exchange(m=2)}, r"exchange.m is 5 there and 2 here"),
        ({"engine": Sequential()}, r"engine.name is vectorised there and sequential here"),
        (
            {"net": initialised(lambda: small(dropout=0.2), 0)},
            r"model.layers is \w+ there and \w+ here",
        ),
        (
            {"net": initialised(lambda: small(width=6), 0)},
            r"model.parameters is 32 there and 38 here",
        ),
        (
            {"net": initialised(small, 1)},
            r"recorded.initial_weights is \w+ there and \w+ here; fedmix.models.initialised gives "
            r"the same",
        ),
        ({"samples": arrays(clients=5)}, r"data.clients is 4 there and 5 here"),
        ({"samples": arrays(flip=1)}, r"recorded.samples is \w+ there and \w+ here"),
    ],
)
def test_another_federation_is_refused(
    made: dict[str, Any], said: str, whole: tuple[Path, Federation, dict[str, Any]]
) -> None:
    before = {path.name: path.read_bytes() for path in whole[0].iterdir()}
    with pytest.raises(BadInput, match=rf"holds another experiment \({said}"):
        record(federation(**made), whole[0], rounds=6, target=0.5)
    assert {path.name: path.read_bytes() for path in whole[0].iterdir()} == before


def test_a_seed_that_no_file_can_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="seed=1180591620717411303424 has more than 64 bits"):
        record(federation(seed=2**70, net=small()), tmp_path / "run", 1, quiet=True)
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_recorded(
    tmp_path: Path, whole: tuple[Path, Federation, dict[str, Any]]
) -> None:
    folder, trained, _ = whole
    for wrong, said in (
        (
            {"rounds": 5, "target": 0.5},
            "holds this run with 6 rounds, more than 5; ask for 6 or more",
        ),
        ({"rounds": 0}, "rounds=0 must be at least 1"),
        ({"rounds": "6"}, "rounds='6' must be at least 1, and a whole number"),
        ({"rounds": 2, "evaluate_every": 0}, "evaluate_every=0 must be at least 1"),
        ({"rounds": 2, "target": "high"}, "target='high' is no number"),
        ({"rounds": 2, "target": float("nan")}, "target=nan is no number"),
    ):
        with pytest.raises(BadInput, match=said):
            record(federation(), folder, **wrong)
    with pytest.raises(
        BadInput, match="what is to be recorded is the function federation; give a Federation"
    ):
        record(federation, tmp_path, rounds=1)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="has done 6 rounds; record a new one, which goes on from"):
        record(trained, tmp_path, rounds=8)
    (tmp_path / "experiment.toml").write_text("rounds = 'many'")
    with pytest.raises(BadInput, match="does not say how many rounds"):
        record(federation(), tmp_path, rounds=1)


@dataclass(frozen=True)
class Tempered(Objective):
    """The loss at a temperature, with an objective beside it and a parameter that is no plain
    value.
    """

    beside: Objective
    temperature: Any
    call: Any = abs

    def __call__(self, model: Model, params: Params, anchor: Params, batch: Batch) -> Tensor:
        outputs = model(params, batch.x, batch.key) / float(self.temperature)
        return batch_mean(model.loss.value(outputs, batch.y), batch.mask) + self.beside(
            model, params, anchor, batch
        )


def test_seeds_and_algorithms_are_reported(tmp_path: Path) -> None:
    """From any thread.

    Runs that differ in their seed alone, and so in their first weights, are one group.
    """
    objectives = {
        "fedmix": FedMix(lam=0.1),
        "prox": FedMix(lam=0.1) + Proximal(mu=0.2),
        "hidden": Hidden(FedMix(lam=0.1), layer=1),
        "avg": Supervised(),
        "own": Tempered(Supervised(), np.float32(2)),
        "sum": Supervised() + Tempered(Supervised(), 3),
    }
    with ThreadPoolExecutor(1) as pool:
        made = [
            (tmp_path / f"{name}-{seed}", federation(seed, o))
            for name, o in objectives.items()
            for seed in (0, 1)
        ]
        done = list(pool.map(lambda one: record(one[1], one[0], 1, quiet=True), made))
    names = ["fedmix", "fedmix+prox", "hidden-fedmix", "fedavg", "Tempered", "fedavg+Tempered"]
    assert [summary["algorithm"] for summary in done[::2]] == names
    groups = {group.label: group for group in grouped(load_runs([tmp_path]))}
    assert set(groups) == set(names)
    assert all([run.seed for run in group.runs] == ["0", "1"] for group in groups.values())
    own = groups["Tempered"].settings
    assert {k: v for k, v in own.items() if k.startswith("objective.")} == {
        "objective.name": "Tempered", "objective.temperature": "2.0", "objective.mu": "0.0",
        "objective.layer": "0", "objective.beside.name": "fedavg", "objective.beside.mu": "0.0",
        "objective.beside.layer": "0",
    }  # fmt: skip


@pytest.mark.parametrize(
    "command", ["resume {0}", "run {0}/experiment.toml", "compare {0}/experiment.toml"]
)
def test_commands_say_that_the_script_is_needed(
    command: str, whole: tuple[Path, Federation, dict[str, Any]]
) -> None:
    result = CliRunner().invoke(app, command.format(whole[0]).split())
    assert isinstance(result.exception, BadInput)
    assert str(result.exception).endswith(
        "tells of a script's own federation, which that script alone can make; run the script again"
    )


ROWS = {1: [0, 1], 2: [5]}


def looked_up(round_: int) -> dict[int, Any]:
    return {0: ROWS[round_]} if round_ in ROWS else {}


def given(rows: Any, at: int = 1) -> Any:
    """A function of the round that carries its rows with it."""
    return lambda round_: {0: np.asarray(rows)} if round_ == at else {}


def fixed(round_: int, rows: tuple[int, ...] = (3, 4)) -> dict[int, Any]:
    return {0: list(rows)} if round_ == 1 else {}


class Shifting:
    """A function with a state of its own."""

    def __init__(self, by: int) -> None:
        self.by = by

    def __call__(self, round_: int) -> dict[int, Any]:
        return {0: [round_ + self.by]}

    def other(self, round_: int) -> dict[int, Any]:
        return {0: [round_ + 2 * self.by]}


def test_another_change_of_the_data_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its name, its code, or what it takes from around it. The same one, made again, goes on."""
    functions: dict[str, Any] = {
        "name": looked_up, "closure": given([1, 2]), "array": given(np.arange(3)), "default": fixed,
        "object": Shifting(1), "method": Shifting(1).other, "partial": partial(fixed, rows=(7,)),
        "constant": lambda _: {0: [8]}, "code": lambda r: {0: [r]},
    }  # fmt: skip
    for name, changes in functions.items():
        record(
            federation(objective=Supervised(), changes=changes),
            tmp_path / name,
            rounds=1,
            quiet=True,
        )
    again = functions | {
        "closure": given([1, 2]), "array": given(np.arange(3)), "object": Shifting(1),
        "method": Shifting(1).other, "partial": partial(fixed, rows=(7,)),
    }  # fmt: skip
    for name, changes in again.items():
        assert (
            record(
                federation(objective=Supervised(), changes=changes),
                tmp_path / name,
                rounds=2,
                quiet=True,
            )["rounds"]
            == 2
        )
    others = again | {
        "name": fixed, "closure": given([1, 3]), "array": given(np.arange(3) * 2),
        "object": Shifting(2), "method": Shifting(2).other, "partial": partial(fixed, rows=(6,)),
        "constant": lambda _: {0: [9]}, "code": lambda r: {0: [-r]}, "default": partial(fixed),
    }  # fmt: skip
    for name, changes in others.items():
        with pytest.raises(
            BadInput, match=r"holds another experiment \(recorded.changes is \w+ there and \w+ here"
        ):
            record(
                federation(objective=Supervised(), changes=changes),
                tmp_path / name,
                rounds=3,
                quiet=True,
            )
    with pytest.raises(BadInput, match=r"\(data.changes is true there and false here"):
        record(federation(objective=Supervised()), tmp_path / "name", rounds=3, quiet=True)
    monkeypatch.setitem(ROWS, 2, [6])
    with pytest.raises(BadInput, match=r"recorded.changes is"):
        record(
            federation(objective=Supervised(), changes=looked_up),
            tmp_path / "name",
            rounds=3,
            quiet=True,
        )


def scaled(factor: float) -> Objective:
    """An objective that is a plain function, which carries its factor with it."""
    return as_objective(lambda *given: factor * Supervised()(*given))


@pytest.mark.parametrize("made", [scaled, lambda factor: Supervised() + scaled(factor)])
def test_another_function_as_the_objective_is_refused(
    made: Callable[[float], Objective], tmp_path: Path
) -> None:
    """Its name, the same for all that are made so, would let another train on."""
    for rounds in (1, 2):  # the same one, made again, goes on
        record(federation(objective=made(2.0)), tmp_path, rounds, quiet=True)
    with pytest.raises(BadInput, match=r"\(recorded.functions is \w+ there and \w+ here"):
        record(federation(objective=made(3.0)), tmp_path, 3, quiet=True)
