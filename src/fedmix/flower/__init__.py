"""Federations on Flower: every client is a process of its own, on one machine or on many.

Needs `fedmix[flower]`; only this package imports flwr.

    from fedmix.flower import Task, client_app, server_app

    task = Task.read(Path(__file__).with_name("experiment.toml"), load, held_out)
    client = client_app(task)
    server = server_app(task)

Objectives, plans, exchange and models are those of the other engines. For an app of your own, with
any training and any strategy of Flower:

    share_means(app, samples, Exchange(m=50))                          # client
    pool = received_means(context)
    strategy = WithMeans(FedAvg(), Exchange(m=50), like=..., clients=10)    # server
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedmix.core.extras import needed

if TYPE_CHECKING:
    from fedmix.flower.client import client_app
    from fedmix.flower.server import server_app
    from fedmix.flower.sharing import received_means, share_means
    from fedmix.flower.strategy import WithMeans
    from fedmix.flower.task import Task

__all__ = ["Task", "WithMeans", "client_app", "received_means", "server_app", "share_means"]

_HOME = {
    "Task": "task",
    "WithMeans": "strategy",
    "client_app": "client",
    "received_means": "sharing",
    "server_app": "server",
    "share_means": "sharing",
}

# In the process of a SuperNode that is about to load its app: Flower would send the text of an
# exception, which may hold data, to the server. The reply points to the node's log instead.
if _process := sys.modules.get("flwr.supernode.runtime.run_clientapp"):
    _error: Any = vars(_process).get("Error")
    if _error is None:
        raise ImportError(
            "fedmix takes the text off the errors that Flower sends, and this Flower makes them "
            "elsewhere; install a version that fedmix[flower] allows"
        )
    setattr(_process, "Error", lambda code, reason: _error(code, "its own log says why"))  # noqa: ARG005, B010


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that a client's processes import no server code."""
    if name in _HOME:
        with needed(f"fedmix.flower.{name}", "flower"):
            return getattr(import_module(f"fedmix.flower.{_HOME[name]}"), name)
    raise AttributeError(f"module 'fedmix.flower' has no attribute {name!r}")
