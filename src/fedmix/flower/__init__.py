"""The same federation on Flower: every client a process of its own, on one machine or on many
(needs `fedmix[flower]`).

    from fedmix.flower import Task, client_app, server_app

    task = Task.read(Path(__file__).with_name("experiment.toml"), load, held_out)
    client = client_app(task)
    server = server_app(task)

Objectives, plans, exchange and models are those of every other engine; only this package imports
flwr.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedmix.flower.client import client_app
    from fedmix.flower.server import server_app
    from fedmix.flower.task import Task

__all__ = ["Task", "client_app", "server_app"]

_HOME = {"Task": "task", "client_app": "client", "server_app": "server"}

if _process := sys.modules.get(
    "flwr.supernode.runtime.run_clientapp"
):  # this is a node's, which is about to load its app
    _error: Any = _process.__dict__[
        "Error"
    ]  # by which Flower would tell the server what an exception says
    setattr(_process, "Error", lambda code, reason: _error(code, "its own log says why"))  # noqa: ARG005, B010


def __getattr__(
    name: str,
) -> Any:  # so that a client's processes, one for each message, import nothing of the server
    if name in _HOME:
        return getattr(import_module(f"fedmix.flower.{_HOME[name]}"), name)
    raise AttributeError(f"module 'fedmix.flower' has no attribute {name!r}")
