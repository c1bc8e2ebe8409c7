"""What is chosen where nobody says how to train: by the rule, in Python, and in a run's folder."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from fedmix import Federation, Sequential, Supervised, Training, Vectorised, models
from fedmix.cli import launch
from fedmix.experiment.presets import experiment
from fedmix.experiment.spec import Experiment
from fedmix.runs import run as runs
from fedmix.runs.run import Run
from fedmix.training.engines import choice, vectorised
from fedmix.training.engines.choice import choose
from tests.synthetic import federated

# Steps of all clients: rounds x clients a round x epochs x batches of ten, counted by hand.
PRESETS = {
    "digits": (40 * 5 * 5 * 8, 5),  # some 72 samples a client
    "femnist": (200 * 10 * 10 * 21, 10),  # some 203 samples a writer
    "cifar10": (500 * 15 * 2 * 84, 15),  # 833
    "cifar100": (500 * 10 * 10 * 50, 10),  # 500
}


@pytest.mark.parametrize(
    ("steps", "clients", "cores", "chosen"),
    [
        (*PRESETS["digits"], 2, (False, 1)),
        (*PRESETS["femnist"], 1, (True, 1)),
        (*PRESETS["femnist"], 2, (True, 2)),
        (*PRESETS["femnist"], 64, (True, 5)),  # no process has one client
        (*PRESETS["cifar10"], 4, (True, 4)),
        (*PRESETS["cifar10"], 64, (True, 7)),
        (*PRESETS["cifar100"], 3, (True, 3)),
        (49_999, 100, 8, (False, 1)),
        (50_000, 100, 8, (True, 8)),
        (10**9, 1000, 64, (True, 8)),
        (10**9, 1, 64, (True, 1)),
    ],
)
def test_the_rule(steps: int, clients: int, cores: int, chosen: tuple[bool, int]) -> None:
    assert choose(steps, clients, cores) == chosen
    assert choose(steps, clients, cores, recurrent=True) == (False, chosen[1])


def test_steps_are_those_of_the_data() -> None:
    """Clients of 70 to 74 samples: eight batches each, or seven."""
    spec = experiment("digits", "fedavg")
    sizes = spec.build_data().clients.sizes
    assert 7 <= min(sizes) / 10 < max(sizes) / 10 <= 8
    steps = spec.build_training().steps_of_all(sizes, spec.rounds)
    assert PRESETS["digits"][0] * 7 / 8 < steps < PRESETS["digits"][0]
    assert Training(2, epochs=3, batch_size=4).steps_of_all(np.array([4, 5, 9]), 10) == 120


def of(engine: Any = None) -> Federation:
    """Clients of 7, 1 and 12 samples with batches of 4: two, one and three steps, six a round."""
    data = federated("digits_cnn", (7, 1, 12))
    training = Training(clients_per_round=3, batch_size=4)
    return Federation(models.digits_cnn(), data, Supervised(), training, engine=engine)


@pytest.fixture
def _many_are_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "MANY", 10)


@pytest.mark.usefixtures("_many_are_ten")
def test_a_federation_chooses_by_its_rounds() -> None:
    with patch.object(vectorised, "Program"):  # nothing is compiled here
        federation = of()
        assert federation.how()["compiled"] == "no"
        federation.settle(1)
        assert federation.how()["compiled"] == "no"
        federation.settle(2)
        assert federation.how()["compiled"] == "yes"
        assert vars(federation.runner)["compile"]
        federation.settle(1)
        assert federation.how()["compiled"] == "yes"  # what is there is used
    for engine in (Vectorised(compile=False), Sequential()):
        federation = of(engine)
        federation.settle(1000)
        assert federation.how()["compiled"] == "no"


@pytest.mark.usefixtures("_many_are_ten")
def test_what_was_settled_stays() -> None:
    federation = of()
    federation.settle(2, compiled=False)
    federation.settle(1000)
    assert not federation.compiled
    assert federation.how().items() >= {("compiled", "no"), ("processes", "1")}


def tiny(**settings: Any) -> Experiment:
    quick = {"rounds": 2, "training.epochs": 1, "data.clients": 10, "data.local_share": 0.2}
    return experiment("digits", "fedavg", seed=1).with_settings(quick | settings)


def said(folder: Path) -> dict[str, str]:
    return dict(json.loads((folder / "environment.json").read_text()))


def test_a_run_goes_on_as_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is chosen is in environment.json, and not in the id; a resumed run does not choose."""
    run = Run(tiny(), tmp_path)
    run.execute()
    assert (said(tmp_path)["compiled"], said(tmp_path)["processes"]) == ("no", "1")
    monkeypatch.setattr(choice, "MANY", 1)
    monkeypatch.setattr(runs, "cores", lambda: 2)
    longer = Run(tiny(rounds=3), tmp_path)
    assert longer.processes() == 1
    longer.execute()
    assert said(tmp_path)["compiled"] == "no"
    elsewhere = Run(tiny(rounds=3), tmp_path / "new")
    assert elsewhere.processes() == 2
    assert Run(tiny(**{"engine.processes": 3}), tmp_path / "new").processes() == 3
    assert Run(tiny(**{"engine.name": "sequential"}), tmp_path / "new").processes() == 1
    (tmp_path / "environment.json").write_text(json.dumps({"processes": "2"}))
    assert longer.processes() == 2
    (tmp_path / "environment.json").write_text(json.dumps({"processes": "512"}))  # of a cluster
    assert longer.processes() == 1


def test_what_is_asked_for_is_what_the_folder_tells(tmp_path: Path) -> None:
    """A run that began without compiling goes on with it, where its settings ask for that now."""
    Run(tiny(), tmp_path).execute()
    fails = patch.object(vectorised.VectorisedRunner, "_run", side_effect=ZeroDivisionError)
    with fails, pytest.raises(ZeroDivisionError):
        Run(tiny(rounds=3, **{"engine.compile": True}), tmp_path).execute()
    assert said(tmp_path)["compiled"] == "yes"


def test_a_folder_from_before_goes_on_as_its_settings_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says nothing of what was chosen, since nothing was: compiled if its file says so."""
    compiled, plain = tmp_path / "compiled", tmp_path / "plain"
    for folder in (compiled, plain):
        Run(tiny(), folder).execute()
        about = {k: v for k, v in said(folder).items() if k not in ("compiled", "processes")}
        (folder / "environment.json").write_text(json.dumps(about))
    spec = (compiled / "experiment.toml").read_text()
    assert spec.count("[engine]") == 1
    spec = spec.replace("[engine]", "[engine]\ncompile = true\nprocesses = 1")
    (compiled / "experiment.toml").write_text(spec)
    monkeypatch.setattr(choice, "MANY", 1)
    for folder, how in ((compiled, "yes"), (plain, "no")):
        fails = patch.object(vectorised.VectorisedRunner, "_run", side_effect=ZeroDivisionError)
        with fails, pytest.raises(ZeroDivisionError):
            Run(tiny(rounds=3), folder).execute()
        assert said(folder)["compiled"] == how
        assert said(folder)["processes"] == "1"


def test_the_command_line_starts_as_many_as_the_longest_run_wants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    def start(workers: int, *_: object) -> int:
        started.append(workers)
        return 0

    monkeypatch.setattr(launch, "launch", start)
    monkeypatch.setattr(runs, "cores", lambda: 2)
    short, long = (
        Run(tiny(rounds=r), tmp_path / str(r)) for r in (2, 60_000)
    )  # one step of each of five clients
    launch.on_workers([short], None, 1, 0)
    assert started == []
    with pytest.raises(SystemExit):
        launch.on_workers([short, long], None, 1, 0)
    assert started == [2]
    launch.on_workers([short, long], None, 2, 0)  # two jobs at once share the machine already
    assert started == [2]
