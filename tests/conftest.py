"""The paper's tables at a size that tests can run, on made-up files in the hub's layout."""

from pathlib import Path

import pytest

from fedmix.paper import scale
from fedmix.paper.scale import Small
from tests.miniature import write_mirror

VGG = {
    "data.samples_per_client": 20,
    "training.lr": 0.001,
    "model.widths": (2, 2, 2, 2, 2, 2),
    "model.hidden": 8,
}
TINY = {
    "cifar10": Small(1, 4, 4, VGG),
    "cifar100": Small(1, 20, 4, VGG | {"training.epochs": 2}),
    "femnist": Small(
        1, 30, 8, {"training.lr": 0.001, "training.epochs": 1, "engine.compile": False}
    ),
    "shakespeare": Small(1, 15, 1, {"data.cap": 90, "model.hidden": 4, "model.embedding": 2}),
}


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
    monkeypatch.setenv("FEDMIX_CACHE", str(hub / "cache"))
    return hub
