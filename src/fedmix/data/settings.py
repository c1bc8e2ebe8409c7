"""Checks of settings that all data sets share, before any samples are read."""

import os
from typing import Any

from fedmix.core.errors import BadInput
from fedmix.core.validation import flag, instance, number, whole
from fedmix.data.partition import check_alpha, check_share

COUNTS = ("clients", "classes_per_client", "least")
OPTIONAL = ("samples_per_client", "cap")


def check_settings(**settings: Any) -> None:
    """Raise BadInput for a setting out of range, or an alpha that the partition does not use.

    >>> check_settings(clients=0)
    Traceback (most recent call last):
    fedmix.core.errors.BadInput: data.clients=0 must be at least 1, and a whole number
    """
    for name, value in settings.items():
        if name in COUNTS or (name in OPTIONAL and value is not None):
            whole(f"data.{name}", value)
        if name == "seed":
            whole(name, value, 0)
        if name == "augment":
            flag(f"data.{name}", value)
        if name in ("root", "cache") and value is not None:
            instance(name, value, (str, os.PathLike), "give the path of a folder")
        if name in ("test_share", "train_share") and not 0 < number(f"data.{name}", value) < 1:
            raise BadInput(f"data.{name}={value} must lie between 0 and 1")
    check_share(settings.get("local_share", 1.0))
    if "partition" in settings:
        check_alpha(settings["partition"], settings["alpha"])
