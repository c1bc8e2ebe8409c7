"""A run that diverges or collapses says so in its folder, whoever started it."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedmix import BadInput, Collapsed, Diverged, Federation, Training, record
from fedmix.experiment.presets import experiment
from fedmix.objectives import Supervised
from fedmix.runs.failure import Failure, read_failure
from fedmix.runs.run import Run
from tests.runs.test_recording import arrays, small
from tests.runs.test_runs import tiny
from tests.test_cli import fedmix

DIVERGING = ["digits", "--rounds", "3", "--set", "training.lr=1e39", "--quiet"]


@pytest.mark.parametrize("jobs", [1, 2])
def test_fedmix_run_records_a_divergence_as_reproduce_does(
    jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["run", *DIVERGING, "--seeds", jobs, "--jobs", jobs, "--out", tmp_path]
    assert fedmix(monkeypatch, *args) == 1
    err = capsys.readouterr().err
    folders = list(tmp_path.iterdir())
    assert len(folders) == jobs
    for folder in folders:
        text = (folder / "failure.json").read_text()
        said = json.loads(text)
        assert list(said) == ["kind", "round", "client", "step", "reason"]
        assert text == json.dumps(said, indent=1) + "\n"
        assert (said["kind"], said["round"]) == ("diverged", 1)
        assert f"round 1, client {said['client']}, step {said['step']}: {said['reason']}" in err
        assert read_failure(folder) == Failure("diverged", 1, said["reason"])
        assert not (folder / "summary.json").exists()


def test_a_run_that_failed_can_be_tried_again_and_a_finished_one_has_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def collapse(*_: Any, **__: Any) -> None:
        raise Collapsed(2, "it only guesses")

    with monkeypatch.context() as patched:
        patched.setattr(Federation, "run", collapse)
        for _ in range(2):  # going on ends the same way
            with pytest.raises(Collapsed):
                Run(tiny(rounds=1), tmp_path).execute()
    written = (tmp_path / "failure.json").read_text()
    assert written == '{\n "kind": "collapsed",\n "round": 2,\n "reason": "it only guesses"\n}\n'
    Run(tiny(rounds=1), tmp_path).execute()
    assert read_failure(tmp_path) is None


def test_a_script_records_it_too(tmp_path: Path) -> None:
    federation = Federation(small(), arrays(), Supervised(), Training(2, lr=1e39))
    with pytest.raises(Diverged):
        record(federation, tmp_path, rounds=2, quiet=True)
    failure = read_failure(tmp_path)
    assert failure is not None
    assert (failure.kind, failure.round) == ("diverged", 1)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"round": "x", "reason": ""}', "[" * 9999])
def test_a_damaged_record_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "failure.json").write_text(content)
    with pytest.raises(BadInput, match=r"failure\.json is damaged; delete it and go on with"):
        read_failure(tmp_path)


def test_other_errors_are_no_results(tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        Run(experiment("digits").with_settings({"engine.device": "tpu"}), tmp_path / "a").execute()
    assert not list(tmp_path.iterdir())
