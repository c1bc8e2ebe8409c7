"""Whose data a node holds: samples, policy, and an account of what has left the node."""

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from flwr.app import ConfigRecord, Context, RecordDict
from torch.utils.data import DataLoader, Dataset

from fedmix.core.errors import BadInput, FedmixError, described
from fedmix.core.types import Array
from fedmix.data import federated
from fedmix.data.federated import FederatedData
from fedmix.data.per_party import alone
from fedmix.exchange import Exchange, Means
from fedmix.exchange.one_client import CHUNK
from fedmix.flower import wire
from fedmix.flower.ledger import Account
from fedmix.flower.policy import Policy
from fedmix.flower.refusals import Refused
from fedmix.flower.terms import Terms

Given: TypeAlias = FederatedData | tuple[Any, Any] | Dataset[Any] | Iterable[Any]
"""A client's samples: its data, a pair of inputs and labels, a Dataset, or batches of pairs."""
PAIRS = (
    "give a pair (inputs, labels), or batches of such pairs: "
    "((batch['image'], batch['label']) for batch in loader)"
)
log = logging.getLogger("fedmix.flower")


def data_of(given: Given, classes: int | None = None) -> FederatedData:
    """Return samples as the data of one party.

    Batches of a loader come in an order of their own, perhaps another one each time. So samples
    are sorted, and the same samples are the same data.

    Args:
        given: Data, a pair (inputs, labels), a Dataset of such pairs, or batches of them, as a
            DataLoader gives them.
        classes: Number of classes if labels are integers; None for vectors.

    Raises:
        BadInput: They are something else, or do not fit together.
    """
    if isinstance(given, FederatedData):
        return given
    if isinstance(given, tuple) and len(given) == 2:
        return alone(*given, classes=classes)
    if isinstance(given, Dataset):
        given = DataLoader(given, batch_size=CHUNK)
    if not isinstance(given, Iterable):
        raise BadInput(f"the samples are {described(given)}; {PAIRS}")
    batches = [_pair(batch) for batch in given]
    if not batches:
        raise BadInput("there are no samples; give inputs and labels")
    x, y = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    rows = [hashlib.sha256(a.tobytes() + b.tobytes()).digest() for a, b in zip(x, y, strict=True)]
    order = sorted(range(len(rows)), key=rows.__getitem__)
    return alone(x[order], y[order], classes=classes)


def _pair(batch: Any) -> tuple[Array, Array]:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise BadInput(f"a batch of the samples is {described(batch)}; {PAIRS}")
    x, y = map(np.asarray, batch)
    if not x.ndim or x.shape[:1] != y.shape[:1]:
        raise BadInput(
            f"a batch of the samples has inputs of shape {x.shape} and labels of shape {y.shape}; "
            f"{PAIRS}"
        )
    return x, y


@contextmanager
def refusing(reason: str) -> Iterator[None]:
    """Log any error in the block, and raise Refused with this reason instead."""
    try:
        yield
    except Refused:
        raise
    except Exception as error:
        note(error)
        raise Refused(reason) from error


def note(error: Exception) -> None:
    """Write an error to the node's own log."""
    if isinstance(error, FedmixError):
        log.error("%s", error)
    else:  # from a function or a module of the user
        log.error("the client's app failed", exc_info=error)


@dataclass(frozen=True)
class Owner:
    """The owner of a client's samples, as its node's configuration says.

    Attributes:
        client: Number of the client.
        data: Its samples.
        digest: A hash of them, 63 bits. It also depends on the experiment and the client, so that
            nobody can see that two clients, or two experiments, have the same samples.
        terms: What it must have in common with the server.
        policy: What it allows.
        account: What has left it so far.
        config: Its node's configuration.
    """

    client: int
    data: FederatedData
    digest: int
    terms: Terms
    policy: Policy
    account: Account
    config: Mapping[str, Any]

    @staticmethod
    def of(
        context: Context,
        load: Callable[[Context], Given],
        classes: int | None,
        exchange: Exchange | None,
        experiment: str,
    ) -> "Owner":
        """Load the client that a node's configuration names.

        Args:
            context: Flower's context of the node.
            load: Returns the client's samples.
            classes: Number of classes if `load` returns integers as labels.
            exchange: How means are exchanged.
            experiment: Names what is trained.

        Raises:
            Refused: `partition-id` is missing, the policy, the ledger or the data cannot be loaded,
                or the policy does not accept the experiment.
        """
        config = context.node_config
        client = config.get("partition-id")
        if type(client) is not int:
            raise Refused("number")
        with refusing("policy"):
            policy = Policy.load(Path(str(config["policy"]))) if "policy" in config else Policy()
        with refusing("ledger"):
            account = policy.account()
        with refusing("data"):
            data = data_of(load(context), classes)
            if len(data.clients) != 1:
                raise BadInput(
                    f"the load function gave client {client} the data of {len(data.clients)}; use "
                    "fedmix.data.alone"
                )
            where = np.frombuffer(f"{experiment} {client}".encode(), np.uint8)
            digest = int.from_bytes(federated.digest(where, data.x, data.y)[:8], "big") >> 1 | 1
            terms = Terms.of(data, exchange, experiment)
        policy.check_terms(terms)
        return Owner(client, data, digest, terms, policy, account, config)

    @property
    def samples(self) -> int:
        """Number of samples, n_k."""
        return int(self.data.clients.sizes[0])

    @property
    def trains(self) -> bool:
        """Whether its policy lets weights out."""
        try:
            self.policy.check_weights(self.account)
        except Refused:
            return False
        return True

    def presence(self, holds: int) -> ConfigRecord:
        """Return what the client says about itself; it holds this version of the pool."""
        said = wire.Presence(self.client, self.samples, self.digest, holds, self.trains)
        return ConfigRecord(said._asdict())

    def release(self, means: Means, how: Exchange) -> None:
        """Count means that are about to leave the client, and log what they are.

        Raises:
            Refused: The policy lets no further means out, or the ledger cannot be used.
        """
        m = how.group_size(self.client, self.samples)
        with refusing("ledger"), self.account.writing() as account:
            self.policy.check_release(account)
            account.released(len(means.x), m)
        log.info(
            "%s this node, over %s samples%s; %s, %s%s",
            f"{len(means.x)} means leave" if len(means.x) > 1 else "one mean leaves",
            m if len(means.x) * m == self.samples else f"{m} or more",
            " each" if len(means.x) > 1 else "",
            "noise of deviation {:g} on inputs and {:g} on labels".format(*how.noises)
            if any(how.noises)
            else "without noise",
            f"clipped to a norm of {how.clip:g}" if how.clip else "not clipped",
            self._so_far(f"release {self.account.releases}"),
        )

    def send_weights(self, content: RecordDict) -> None:
        """Count weights that are about to leave the client, and log their size.

        Raises:
            Refused: The policy lets no weights out, or the ledger cannot be used.
        """
        arrays = [a for part in content.array_records.values() for a in part.values()]
        sent = sum(len(array.data) for array in arrays)
        if sent:
            with refusing("ledger"), self.account.writing() as account:
                self.policy.check_weights(account)
                account.trained(sent)
            said = self._so_far(f"round {self.account.rounds}")
            log.info("weights of %s bytes leave this node%s", sent, said)

    def _so_far(self, count: str) -> str:
        return f"; {count} by its ledger" if self.account.path else ""
