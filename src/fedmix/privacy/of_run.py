"""The differential privacy of what a run has released so far: its means, or all that it did."""

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
from fedmix.privacy.whole import NoisySums, Whole, together
from fedmix.training.federation import Federation
from fedmix.training.head import Head
from fedmix.training.rounds import Rounds

ELSEWHERE = "the run goes on from a state that was made with other settings"
TWICE = "some samples are there twice, with one client or with two, or went from one to another"


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
    return _of_means(run, run.exchange, delta, neighbours, level)


def _of_means(
    run: Releasing, exchange: MeanExchange, delta: float, neighbours: Neighbours, level: Level
) -> Guarantee:
    """What the means guarantee by their settings, if what they are made of is no secret."""
    how = exchange.how
    return guarantee(
        how, exchange.smallest or how.smallest_group(run.sizes()) or 1, delta,
        releases=max(1, int(exchange.sent.max())), neighbours=neighbours, level=level,
        nonnegative=run.samples_are_here and not run.needs.layer and nonnegative(run.data),
    )  # fmt: skip


def whole_of(run: Rounds, delta: float = DELTA) -> Whole:
    """What all that has left clients so far guarantees together; before the first, what it will.

    Hidden states and a head's statistics are made by weights. With noise on updates these are
    released already, so that each release of such means counts as one more.

    Args:
        run: A federation.
        delta: The δ of (ε, δ).

    >>> from fedmix import DPFedAvg, Federation, Supervised, Training, data, models
    >>> run = Federation(
    ...     models.digits_cnn(), data.digits(), Supervised(), Training(5),
    ...     updates=DPFedAvg(clip=1.0, noise_multiplier=8.0),
    ... )
    >>> list(whole_of(run).parts)
    ['updates of one round, 5 of 20 clients in each']
    """
    check_promise(delta)
    rule, others = run.updates, dict[str, float]()
    reason = _why_none_of_all(run)
    if not reason and run.exchange is not None and run.exchange.how.source == "pool":
        means = _of_means(run, run.exchange, delta, "replace", "client")
        times = "one release" if means.releases == 1 else f"{means.releases} releases"
        others[f"means of {times}"] = means.mu
        reason = means.reason and f"the means: {means.reason}"
    if not reason and run.head is not None:
        statistics = head_guarantee_of(run, delta, level="client")
        others["a head's statistics"] = statistics.mu
        reason = statistics.reason and f"the head's statistics: {statistics.reason}"
    if reason or rule is None:
        return Whole(math.inf, delta, reason=reason)
    rounds, chosen, clients = run.took_part()
    return together(
        NoisySums(max(1, rounds), rule.noise_multiplier, chosen, clients), others, delta
    )


def _why_none_of_all(run: Rounds) -> str:
    """Why all that leaves clients guarantees nothing, apart from means and statistics."""
    if run.updates is None or not run.updates.noise_multiplier:
        return "the updates: they carry no noise (updates.noise_multiplier)"
    if run.elsewhere:
        return f"the {sorted(run.elsewhere)[-1]}: {ELSEWHERE}"
    if reason := sent_besides(run.needs, run.data):
        return reason
    if isinstance(run, Federation) and _shares_samples(run):
        return f"the samples: {TWICE}"
    if run.steered or run.lr_scale != 1.0 or run.stopped:
        return (
            "the rounds: a callback has changed the learning rate or stopped the run, by what is "
            "not known here"
        )
    return ""


def sent_besides(needs: Needs, data: FederatedData | None = None) -> str:
    """Return what clients send, or how, so that noise on updates and means is not enough; or "".

    Args:
        needs: What local training needs.
        data: Its data, if they are known.
    """
    if needs.partner == "global":
        return "the samples: raw samples of all clients are shared"
    if needs.state is not None:
        return "what clients keep: they send changes of it besides their updates, as they are"
    code = "" if data is None else own_code(data)
    return code and f"the inputs: {code}"


def head_guarantee_of(
    run: Rounds,
    delta: float = DELTA,
    *,
    neighbours: Neighbours = "replace",
    level: Level = "sample",
) -> Guarantee:
    """What the statistics for a head guarantee to who knows the weights already.

    The features come from weights that were trained on the samples themselves. So this is what the
    statistics tell beyond the weights, and both together have as little a guarantee as the weights.

    Args:
        run: A run with a head.
        delta: The δ of (ε, δ).
        neighbours: Whether neighbouring data have a sample (or client) replaced, or one more.
        level: Whether one sample is protected, or one client.
    """
    check_promise(delta, neighbours, level)
    assert run.head is not None
    times = max(1, run.head_releases)
    reason = own_code(run.data) or (ELSEWHERE if "head" in run.elsewhere else "")
    if not reason and isinstance(run, Federation) and _shares_samples(run):
        reason = TWICE
    if reason := reason or why_no_head(run.head):
        return Guarantee(math.inf, delta, math.inf, level, neighbours, times, reason)
    return guarantee(
        run.head.exchange, int(run.sizes().min()), delta, releases=times, neighbours=neighbours,
        level=level,
    )  # fmt: skip


def why_no_head(head: Head) -> str:
    """Why a head's statistics have no guarantee by their settings, or ""."""
    return "" if head.noise else "they carry no noise (head.noise)"


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
    if isinstance(run, Rounds) and "means" in run.elsewhere:
        return ELSEWHERE
    if isinstance(run, Federation) and _shares_samples(run):
        return TWICE
    return ""


def _shares_samples(run: Federation) -> bool:
    """Whether a sample has been there twice, in one round or with two clients in several.

    Its ε would add up over all who ever had it.
    """
    holder = np.full(len(run.data.x), -1)  # the last client that had each sample
    for data in run.data_over_time():
        rows, owner = data.clients.flat, data.clients.owner
        before = holder[rows]
        if ((before >= 0) & (before != owner)).any() or int(np.bincount(rows).max()) > 1:
            return True
        holder[rows] = owner
    return False
