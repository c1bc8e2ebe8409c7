"""The differential privacy of the means that a run has released so far."""

import math
from typing import Protocol

import numpy as np

from fedmix.core.types import Array
from fedmix.data.federated import FederatedData
from fedmix.exchange import MeanExchange
from fedmix.objectives.base import Needs
from fedmix.privacy.accounting import (
    DELTA,
    Guarantee,
    Level,
    Neighbours,
    check_promise,
    guarantee,
    nonnegative,
    own_code,
    why_none,
)  # fmt: skip
from fedmix.training.federation import Federation


class Releasing(Protocol):
    """What has an exchange of means: a federation, or a strategy on Flower."""

    samples_are_here: bool

    @property
    def exchange(self) -> MeanExchange | None:
        """The exchange; None for none."""

    @property
    def needs(self) -> Needs:
        """What local training needs."""

    @property
    def data(self) -> FederatedData:
        """Samples, the clients' or like theirs."""

    def sizes(self) -> Array:
        """Return the number of samples of each client, as far as it is known."""


def guarantee_of(
    run: Releasing,
    delta: float = DELTA,
    *,
    neighbours: Neighbours = "replace",
    level: Level = "sample",
) -> Guarantee:
    """What the means released so far guarantee; before the first release, what that one will.

    Weights are not covered.

    Args:
        run: a federation.
        delta: the δ of (ε, δ).
        neighbours: whether neighbouring data have a sample (or client) replaced, or one more.
        level: whether one sample is protected, or one client.
    """
    check_promise(delta, neighbours, level)
    sent = int(run.exchange.sent.max()) if run.exchange else 0
    reason = _why_none(run)
    if reason or run.exchange is None:
        return Guarantee(math.inf, delta, math.inf, level, neighbours, sent, reason)
    how = run.exchange.how
    return guarantee(
        how, run.exchange.smallest or how.smallest_group(run.sizes()) or 1, delta,
        releases=max(1, sent), neighbours=neighbours, level=level,
        nonnegative=run.samples_are_here and nonnegative(run.data),
    )  # fmt: skip


def _why_none(run: Releasing) -> str:
    """Why nothing is guaranteed; empty where something is."""
    if run.needs.partner == "global":
        return "raw samples of all clients are shared"
    if run.exchange is None or run.exchange.how.source != "pool":
        return "no means are exchanged, and weights carry no guarantee"
    if run.needs.layer:
        return "hidden states are made by weights that were trained on the samples themselves"
    if reason := own_code(run.data) or why_none(run.exchange.how):
        return reason
    if isinstance(run, Federation) and _shares_samples(run):
        return (
            "some samples are there twice, with one client or with two, or went from one to another"
        )
    return ""


def _shares_samples(run: Federation) -> bool:
    """Whether a sample has been there twice, in one round or with two clients in several.

    Its ε would add up over all who ever had it.
    """
    holder = np.full(len(run.data.x), -1)  # the last client that had each sample
    for data in run.history():
        rows, owner = data.clients.flat, data.clients.owner
        before = holder[rows]
        if ((before >= 0) & (before != owner)).any() or int(np.bincount(rows).max()) > 1:
            return True
        holder[rows] = owner
    return False
