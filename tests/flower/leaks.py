"""Ways in which a node's data, paths and settings get into what its app says: real federations get
this file with their app.
"""

import logging
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np

from fedmix.core.errors import FedmixError
from fedmix.data import FederatedData, alone

Load = Callable[[int, Mapping[str, Any]], FederatedData]
NUMBER = 77123  # for what cannot be text


def fail(kind: type[BaseException], text: str) -> Any:
    """Raise what says this, and is called so."""
    raise type(text, (kind,), {})(text)


def loud(data: FederatedData, secret: str) -> FederatedData:
    """Load well, and say a lot."""
    print(secret)
    print(secret, file=sys.stderr)
    logging.getLogger("fedmix.flower").warning(secret)
    warnings.warn(secret, stacklevel=1)
    return data


FAULTS: dict[str, Callable[[FederatedData, str], Any]] = {
    "a label": lambda d, _: alone(d.x, np.full(len(d.x), NUMBER), classes=d.classes),
    "text for inputs": lambda d, secret: alone(
        np.full((len(d.x), 6), secret), d.y, classes=d.classes
    ),
    "text for labels": lambda d, secret: alone(d.x, np.full(len(d.x), secret), classes=d.classes),
    "text for targets": lambda d, secret: alone(d.x, np.full((len(d.x), 1), secret)),
    "a name": lambda d, secret: alone(d.x, d.y[1:], classes=d.classes, name=secret),
    "a path": lambda _, secret: open(f"/nowhere/{secret}"),  # noqa: PTH123, SIM115
    "a module": lambda _, secret: import_module(secret),
    "a class": lambda _, secret: fail(Exception, secret),
    "a class of ours": lambda _, secret: fail(FedmixError, secret),
    "a good name": lambda d, secret: alone(d.x, d.y, classes=d.classes, name=secret),
    "an outlier": lambda d, _: alone(
        np.concatenate([d.x[:1] + 30, d.x[1:]]), d.y, classes=d.classes
    ),
    "a late outlier": lambda d, _: alone(
        np.concatenate([d.x[:-1], d.x[-1:] + 30]), d.y, classes=d.classes
    ),
    "an exit": lambda _, secret: fail(SystemExit, secret),
    "loud": loud,
}


def spoilt(load: Load) -> Load:
    """A load function with the fault that its node's configuration names, and its secret."""
    if "FEDMIX_SECRET" in os.environ:
        fail(Exception, os.environ["FEDMIX_SECRET"])

    def loaded(client: int, config: Mapping[str, Any]) -> FederatedData:
        data = load(client, config)
        return (
            FAULTS[str(config["fault"])](data, str(config.get("secret")))
            if "fault" in config
            else data
        )

    return loaded
