"""Ids of runs: what they hash, what leaves them as they are, and folders from before."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from fedmix import BadInput, Experiment, Run
from fedmix.experiment.presets import experiment
from fedmix.runs.run import folder_of

# What differs from the defaults of the sections, read off the preset and the classes by hand.
DIGITS = {
    "data.name": "digits",
    "model.name": "digits_cnn",
    "objective.name": "naivemix",
    "objective.lam": 0.1,
    "target": 0.9,
    "training.clients_per_round": 5,
    "training.epochs": 5,
    "training.momentum": 0.9,
}


def hashed(settings: dict[str, Any]) -> str:
    """Of the schema's version and the settings, as JSON with sorted keys."""
    said = json.dumps([2, settings], sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()[:10]


def test_an_id_hashes_what_differs_from_the_defaults() -> None:
    assert experiment("digits", "naivemix").id == f"digits-naivemix-s0-{hashed(DIGITS)}"
    other = experiment("digits", "naivemix", seed=3).with_settings(
        {"server.name": "fedavgm", "server.momentum": 0.5, "exchange.noise": 0.1, "rounds": 7}
    )
    more = {"server.name": "fedavgm", "server.momentum": 0.5, "exchange.noise": 0.1}
    changed = hashed(DIGITS | more | {"rounds": 7, "seed": 3})
    assert other.id == f"digits-naivemix-s3-{changed}"
    assert other.identity == f"2:digits-naivemix-s3-{hashed(DIGITS | more | {'seed': 3})}"


def test_a_new_setting_with_a_default_renames_nothing() -> None:
    class Later(Experiment):
        """The spec of a later version."""

        patience: int = 3

    before = experiment("digits", "fedmix")
    later = Later.model_validate(before.values())
    assert (later.id, later.identity) == (before.id, before.identity)
    assert Later.model_validate(before.values() | {"patience": 4}).id != before.id


def test_how_a_run_is_computed_is_not_part_of_an_id() -> None:
    one = experiment("digits", "fedavg")
    assert one.with_settings({"engine.processes": 2, "engine.compile": True}).id == one.id


def tiny(rounds: int = 2) -> Experiment:
    small = {"training.epochs": 1, "training.clients_per_round": 2, "data.clients": 5}
    return experiment("digits", "fedmix").with_settings(small | {"rounds": rounds})


def as_it_was(run: Run) -> Path:
    """Make a folder what it was before ids had a schema, by the rules of that time.

    The file had no [server]. The name was a hash of all settings but the processes, the identity
    the same with one round; files held the identity.
    """
    values = run.experiment.values()
    del values["server"]
    engine = {k: v for k, v in values["engine"].items() if k != "processes"}

    def name(rounds: int) -> str:
        flat = {k: v for k, v in values.items() if not isinstance(v, dict)} | {"rounds": rounds}
        parts = {k: v for k, v in values.items() if isinstance(v, dict)} | {"engine": engine}
        digest = hashlib.sha256(tomli_w.dumps(flat | parts).encode()).hexdigest()[:10]
        return f"digits-fedmix-s0-{digest}"

    sections = {k: v for k, v in values.items() if isinstance(v, dict)}
    flat = {k: v for k, v in values.items() if not isinstance(v, dict)}
    (run.folder / "experiment.toml").write_text(tomli_w.dumps(flat | sections))
    checkpoint = run.folder / "checkpoint.safetensors"
    with safe_open(checkpoint, framework="pt") as file:
        about = file.metadata() | {"experiment": name(1)}
    save_file(load_file(checkpoint), checkpoint, about)
    if (summary := run.folder / "summary.json").is_file():
        said = json.loads(summary.read_text()) | {"identity": name(1)}
        summary.write_text(json.dumps(said))
    return run.folder.rename(run.folder.with_name(name(values["rounds"])))


def test_a_folder_from_before_is_found_and_not_run_again(tmp_path: Path) -> None:
    run = Run(tiny(), folder_of(tiny(), tmp_path))
    summary = run.execute()
    old = as_it_was(run)
    assert folder_of(tiny(), tmp_path) == old
    assert folder_of(tiny(3), tmp_path) == tmp_path / tiny(3).id
    assert folder_of(tiny(), tmp_path, "-flower") == tmp_path / f"{tiny().id}-flower"
    again = Run(tiny(), old).finished()
    assert again is not None
    assert {**again, "identity": ""} == {**summary, "identity": ""}
    assert Run.open(old).experiment == tiny()


def test_a_folder_that_cannot_be_read_is_in_nobodys_way(tmp_path: Path) -> None:
    broken = tmp_path / f"{tiny().id.rpartition('-')[0]}-0123456789"
    broken.mkdir()
    (broken / "experiment.toml").write_text("rounds = ")
    assert folder_of(tiny(), tmp_path) == tmp_path / tiny().id


def test_a_folder_from_before_goes_on(tmp_path: Path) -> None:
    run = Run(tiny(), tmp_path / "run")
    run.execute()
    old = as_it_was(run)
    Run(tiny(4), old).execute()
    whole = Run(tiny(4), tmp_path / "whole")
    whole.execute()
    mine, theirs = (load_file(folder / "checkpoint.safetensors") for folder in (old, whole.folder))
    assert mine.keys() == theirs.keys()
    assert all(mine[name].equal(theirs[name]) for name in mine)
    assert json.loads((old / "summary.json").read_text())["identity"] == tiny().identity


def test_a_folder_from_before_with_another_file_is_refused(tmp_path: Path) -> None:
    run = Run(tiny(), tmp_path / "run")
    run.execute()
    old = as_it_was(run)
    spec = (old / "experiment.toml").read_text()
    (old / "experiment.toml").write_text(spec.replace("momentum = 0.9", "momentum = 0.8"))
    with pytest.raises(BadInput, match=r"experiment\.toml is not the one that its summary was"):
        Run.open(old).finished()


def test_a_folder_of_an_older_schema_is_read_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tiny(), folder_of(tiny(), tmp_path))
    run.execute()
    monkeypatch.setattr("fedmix.experiment.spec.SCHEMA", 3)
    monkeypatch.setattr("fedmix.runs.run.SCHEMA", 3)
    assert folder_of(tiny(), tmp_path) == run.folder
    assert Run.open(run.folder).finished() is not None
    assert Run(tiny(3), run.folder).execute()["rounds"] == 3
    said = json.loads((run.folder / "summary.json").read_text())
    assert said["identity"] == tiny().identity
    assert said["identity"].startswith("3:")
