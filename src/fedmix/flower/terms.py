"""What server and clients must have in common; the roll call keeps out who has something else."""

import hashlib
import json
import re
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import flwr
from flwr.app import ConfigRecord, RecordDict

import fedmix
from fedmix.core.errors import BadInput
from fedmix.core.validation import instance, whole
from fedmix.data.federated import FederatedData
from fedmix.exchange import Exchange
from fedmix.flower.wire import Rejected, said

RECORD = "terms"
TRAINS = [
    "core", "data", "exchange", "flower", "functional", "kernels", "models", "objectives",
    "training",
]  # fmt: skip
PLAIN = re.compile(r"[A-Za-z0-9.+(), -]{1,80}")  # shapes and versions


class Terms(NamedTuple):
    """Properties of the software and of the task, not of a client's samples.

    Attributes:
        fedmix: Version of fedmix.
        code: Hash of the sources of fedmix that train and exchange.
        flower: Version of Flower; it may differ between nodes.
        experiment: Hash of the experiment and of the settings of the exchange.
        shape: Shape of one sample, as it is averaged.
        outputs: Number of classes, or of regression targets.
        classes: Whether labels are classes.
    """

    fedmix: str
    code: str
    flower: str
    experiment: str
    shape: str
    outputs: int
    classes: bool

    @staticmethod
    def of(data: FederatedData, exchange: Exchange | None, experiment: str) -> "Terms":
        """Return the terms of this process.

        Args:
            data: Samples, of which shape and classes count.
            exchange: How means are exchanged.
            experiment: Names what is trained.
        """
        shape = str(tuple(data.units(data.x[:1]).shape[1:]))
        classes = data.classes is not None
        id_ = experiment_id(exchange, experiment)
        return Terms(
            fedmix.__version__, code(), flwr.__version__, id_, shape, data.outputs, classes
        )

    def content(self) -> ConfigRecord:
        """Return them as a record of a message."""
        return ConfigRecord(self._asdict())

    @staticmethod
    def read(content: RecordDict) -> "Terms":
        """Read them from a message; raise Rejected if a value is missing or no plain word."""
        values = [said(content, n, kind, RECORD) for n, kind in Terms.__annotations__.items()]
        for name, value in zip(Terms._fields, values, strict=True):
            if isinstance(value, str) and not PLAIN.fullmatch(value):
                raise Rejected(f"its {name} is no plain word")
        return Terms(*values)

    def check(self, theirs: "Terms") -> None:
        """Raise Rejected if a client's terms are others than these, the server's."""
        same = "install the same on both"
        for name, told in (
            ("fedmix", f"it has fedmix {theirs.fedmix}, and the server {self.fedmix}; {same}"),
            ("code", f"its fedmix {theirs.fedmix} is other code than the server's; {same}"),
            (
                "experiment",
                f"its experiment or exchange is {theirs.experiment}, and the server's "
                f"{self.experiment}; give both the same settings",
            ),
            ("shape", f"its samples have shape {theirs.shape}, and the server's {self.shape}"),
            ("classes", f"its labels are {theirs.labels}, and the server's {self.labels}"),
            ("outputs", f"its labels are {theirs.labels}, and the server's {self.labels}"),
        ):
            if getattr(self, name) != getattr(theirs, name):
                raise Rejected(told)

    @property
    def labels(self) -> str:
        """The kind of labels, in words."""
        return f"{self.outputs} {'classes' if self.classes else 'regression targets'}"


def check_named(experiment: Any, seed: Any) -> None:
    """Raise BadInput for a name of what is trained that is no text, or a seed that is none."""
    instance("experiment", experiment, str, "give a text, the same on both sides")
    whole("seed", seed, least=0)


def check_exchange(exchange: Exchange, clients: int | None = None) -> None:
    """Raise BadInput for an exchange in which no means travel, or whose sums need more clients."""
    instance("exchange", exchange, Exchange, "give a fedmix.Exchange, the same on both sides")
    if exchange.source != "pool":
        raise BadInput(
            f"exchange.source={exchange.source!r} is a control for simulations, in which no means "
            "travel; use source='pool' in a federation"
        )
    if clients is not None and exchange.secure and exchange.average > clients:
        raise BadInput(
            f"exchange.average={exchange.average} clients are in a sum, and clients={clients}; "
            "lower it"
        )


def experiment_id(exchange: Exchange | None, experiment: str) -> str:
    """Return a hash of what an app trains, and of how it exchanges means.

    >>> experiment_id(Exchange(m=50), "digits, 2") == experiment_id(Exchange(m=50), "digits, 3")
    False
    """
    agreed = json.dumps([asdict(exchange) if exchange else None, experiment], sort_keys=True)
    return hashlib.sha256(agreed.encode()).hexdigest()[:16]


@cache
def code() -> str:
    """Return a hash of the sources of fedmix that decide what is trained and exchanged.

    Two checkouts may have one version and different formulas.
    """
    hashed, root = hashlib.sha256(), Path(fedmix.__file__).parent
    for path in sorted(path for room in TRAINS for path in (root / room).rglob("*.py")):
        name = path.relative_to(root).as_posix()
        hashed.update(f"{name} {path.stat().st_size} ".encode() + path.read_bytes())
    return hashed.hexdigest()[:16]
