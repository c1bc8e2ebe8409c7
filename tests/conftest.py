"""The paper's tables at a size that tests can run, on made-up files in the hub's layout."""

from pathlib import Path

import pytest

from fedmix.experiment.spec import Experiment
from fedmix.paper import scale, study
from fedmix.paper.scale import Small
from tests.miniature import write_mirror

VGG = {
    "data.samples_per_client": 20,
    "training.lr": 0.001,
    "model.widths": (2, 2, 2, 2, 2, 2),
    "model.hidden": 8,
}
TINY = {
    "cifar10": Small("", 1, 0.5, clients=15, settings=VGG),
    "cifar100": Small("", 1, 0.5, clients=5, epochs=5, settings=VGG),
    "femnist": Small(
        "", 1, 0.5, clients=3, epochs=10,
        settings={"training.lr": 0.001, "engine.compile": False},
    ),
    "shakespeare": Small(
        "", 1, 0.5, clients=4,
        settings={"data.cap": 90, "model.hidden": 4, "model.embedding": 2},
    ),
}  # fmt: skip


@pytest.fixture(scope="session")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All four data sets, written once."""
    return write_mirror(tmp_path_factory.mktemp("hub"))


@pytest.fixture(scope="session")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder of runs for all tables, which share some."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def tiny(hub: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`--scale small` becomes smaller still; the folder with the files."""
    monkeypatch.setattr(scale, "SMALL", TINY)
    monkeypatch.setattr(study, "SMALL", TINY)
    monkeypatch.setattr(study, "small", few_samples)
    monkeypatch.setenv("FEDMIX_CACHE", str(hub / "cache"))
    return hub


def few_samples(experiment: Experiment) -> Experiment:
    """At small scale, with an eighth of M and of the cut-off: clients have 20 to 39 samples."""
    shrunk = scale.small(experiment)
    if shrunk.exchange is None:
        return shrunk
    m, cutoff = shrunk.exchange.m, max(1, shrunk.exchange.cutoff // 8)
    less = max(1, m // 8) if isinstance(m, int) else m
    return shrunk.with_settings({"exchange.m": less, "exchange.cutoff": cutoff})
