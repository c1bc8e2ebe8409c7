"""The server's settings of a federation: [tool.flwr.app.config] in the app's pyproject.toml."""

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

from fedmix.core.errors import BadInput
from fedmix.core.validation import number, whole


@dataclass(frozen=True)
class Settings:
    """How a server runs a federation.

    `flwr run --run-config 'timeout=120'` changes a setting for one run. In the configuration, names
    have hyphens in place of underscores.

    Attributes:
        clients: Number of clients; their numbers are 0..clients-1.
        min_clients: A run begins when so many clients have joined; 0 for all.
        join_timeout: Seconds after which a run without enough clients fails.
        min_share: Share of `clients_per_round` that has to send valid updates for a round to count.
        timeout: Seconds to wait for the replies of a round.
        attempts: How often a round is tried.
        largest_update: An update whose norm is more than so many times that of the weights is
            rejected.
        at_once: How many nodes work at a time, for nodes that share a machine; 0 for all.
        out: Folder for run folders.
        data: Folder with the hub's files.
        track: Names of trackers that are told of every round, split by commas: tensorboard,
            wandb, mlflow.
        metrics_address: HOST:PORT at which Prometheus can read the last round's metrics.
        command: Command that environment.json records.

    Raises:
        BadInput: A value is out of range.
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
    track: str = ""
    metrics_address: str = ""
    command: str = "flwr run"

    @staticmethod
    def of(config: Mapping[str, Any]) -> "Settings":
        """Read a run configuration; other keys than these settings are left to the user.

        Raises:
            BadInput: `clients` is missing, or a value is of the wrong type or out of range.
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
        try:
            return Settings(**values)
        except BadInput as error:
            raise BadInput(f"run config: {error}") from None

    def __post_init__(self) -> None:
        for field in fields(self):
            value, name = getattr(self, field.name), field.name.replace("_", "-")
            if field.type is int:
                whole(name, value, least=0)
            elif field.type is float:
                number(name, value)
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
            ("largest-update", 0 < self.largest_update < math.inf, "positive and finite"),
        )
        for name, holds, rule in rules:
            if not holds:
                raise BadInput(f"{name}={getattr(self, name.replace('-', '_'))} must be {rule}")

    @property
    def enough(self) -> int:
        """Number of clients with which a run begins."""
        return self.min_clients or self.clients
