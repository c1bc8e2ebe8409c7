"""The app of an experiment whose data set this package knows: what `fedmix federation run` sends to
its nodes.

An app is a folder that Flower packs and sends to every node: a pyproject.toml, this file's two
lines, and experiment.toml.
"""

from pathlib import Path
from typing import Any

import tomli_w

from fedmix.experiment.spec import Experiment

APP = """from pathlib import Path

from fedmix.flower import Task, client_app, server_app

task = Task.read(Path(__file__).with_name("experiment.toml"))
client = client_app(task)
server = server_app(task)
"""


def write_app(folder: Path, experiment: Experiment, config: dict[str, Any]) -> Path:
    """Write the app of an experiment, with the server's settings as its run configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    project = {
        "project": {
            "name": "fedmix-app",
            "version": "1.0.0",
            "description": "",
            "license": "Apache-2.0",
            "dependencies": [],
        },
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "fedmix",
                    "components": {"serverapp": "app:server", "clientapp": "app:client"},
                    "config": config,
                }
            }
        },
    }
    (folder / "pyproject.toml").write_text(tomli_w.dumps(project))
    (folder / "app.py").write_text(APP)
    (folder / "experiment.toml").write_text(experiment.toml())
    return folder
