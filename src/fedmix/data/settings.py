"""Settings that are wrong whatever the samples are, refused before any are read. One means the same in every data set."""

from typing import Any

from fedmix.data.partition import check_alpha, check_share
from fedmix.errors import BadInput

COUNTS = ("clients", "classes_per_client", "samples_per_client", "least", "cap")


def check_settings(**settings: Any) -> None:
    """Refuse numbers out of range, and an alpha that the partition does not go with.

    >>> check_settings(clients=0)
    Traceback (most recent call last):
    fedmix.errors.BadInput: data.clients=0 must be at least 1
    """
    for name, value in settings.items():
        if name in COUNTS and value is not None and value < 1:
            raise BadInput(f"data.{name}={value} must be at least 1")
        if name in ("test_share", "train_share") and not 0 < value < 1:
            raise BadInput(f"data.{name}={value} must lie between 0 and 1")
    check_share(settings.get("local_share", 1.0))
    if "partition" in settings:
        check_alpha(settings["partition"], settings["alpha"])
