"""The Flower app of an experiment on a built-in data set, as `fedmix federation run` sends it.

An app is a folder that Flower packs and sends to every node. It holds pyproject.toml, app.py (the
text `APP`) and experiment.toml.
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
    """Write the app of an experiment.

    Args:
        folder: Folder of the app; made if it does not exist.
        experiment: What the app runs.
        config: Run configuration: the server's settings, see `fedmix.flower.settings.Settings`.

    Returns:
        The folder.
    """
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
