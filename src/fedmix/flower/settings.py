"""How a server runs a federation: the settings of [tool.flwr.app.config] in its pyproject.toml."""

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

from fedmix.core.errors import BadInput


@dataclass(frozen=True)
class Settings:
    """All of them can be changed for a run by `flwr run --run-config 'timeout=120'`.

    `clients` is how many there are (their numbers are 0..clients-1); a run begins when
    `min-clients` of them are there (0: all), or fails after `join-timeout` seconds. A round counts
    when `min-share` of `clients_per_round` have replied well; it waits `timeout` seconds at most
    for the others, and is tried `attempts` times. An update whose norm is more than
    `largest-update` times that of the weights is rejected. At most `at-once` nodes work at a time
    (0: all), for nodes that share a machine. `out` is the folder for run folders, `data` one with
    the hub's files. `command` is what a run's folder says it was started by.
    """

    clients: int
    min_clients: int = 0
    join_timeout: float = 120.0
    min_share: float = 0.5
    timeout: float = 600.0
    attempts: int = 3
    largest_update: float = 10.0
    at_once: int = 0
    out: str = "runs"
    data: str = ""
    command: str = "flwr run"

    @staticmethod
    def of(config: Mapping[str, Any]) -> "Settings":
        """Read a run's configuration; keys that are not settings of this package are left to the
        user.
        """
        values: dict[str, Any] = {}
        for field in fields(Settings):
            key = field.name.replace("_", "-")
            if key in config:
                value = config[key]
                kinds = (int, float) if field.type is float else (field.type,)
                if type(value) not in kinds:
                    raise BadInput(f"run config: {key}={value!r:.80} must be {field.type.__name__}")  # type: ignore[union-attr]
                values[field.name] = value
            elif field.default is MISSING:
                raise BadInput(
                    f"run config: {key} is missing; add it to [tool.flwr.app.config] in "
                    "pyproject.toml"
                )
        return Settings(**values)

    def __post_init__(self) -> None:
        rules = (
            ("clients", self.clients >= 1, "at least 1"),
            (
                "min-clients",
                0 <= self.min_clients <= self.clients,
                f"between 0 and clients={self.clients}",
            ),
            ("join-timeout", 0 < self.join_timeout < math.inf, "positive and finite"),
            ("min-share", 0 < self.min_share <= 1, "above 0 and at most 1"),
            ("timeout", 0 < self.timeout < math.inf, "positive and finite"),
            ("attempts", self.attempts >= 1, "at least 1"),
            ("at-once", self.at_once >= 0, "0 or more"),
            ("largest-update", 0 < self.largest_update < math.inf, "positive and finite"),
        )
        for name, holds, rule in rules:
            if not holds:
                raise BadInput(
                    f"run config: {name}={getattr(self, name.replace('-', '_'))} must be {rule}"
                )

    @property
    def enough(self) -> int:
        """How many clients a run begins with."""
        return self.min_clients or self.clients
