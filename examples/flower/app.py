"""A federation over your own data.

Copy this folder, then change `load`, `held_out` and experiment.toml.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedmix.data import FederatedData, alone
from fedmix.flower import Task, client_app, server_app

CLASSES = 10


def load(client: int, config: Mapping[str, Any]) -> FederatedData:
    """The samples of one client, from a folder on its own machine.

    The folder is given by --node-config 'partition-id=0 data="/srv/digits"'.
    """
    return read(Path(config["data"]) / f"client-{client}.npz")


def held_out(config: Mapping[str, Any]) -> FederatedData:
    """The samples on which the server tests the model after every round."""
    return read(Path(config["data"]) / "test.npz")


def read(path: Path) -> FederatedData:
    """Read float32 vectors `x` and labels `y`; for images or text see fedmix.data.transforms."""
    with np.load(path) as arrays:
        return alone(arrays["x"], arrays["y"], classes=CLASSES)


task = Task.read(Path(__file__).with_name("experiment.toml"), load, held_out)
client = client_app(task)
server = server_app(task)
