"""The server's part for any Flower Strategy: means are exchanged before a round, the rest stays."""

import time
from collections.abc import Iterable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor

from fedmix.core.errors import BadInput
from fedmix.core.types import Array
from fedmix.core.validation import instance
from fedmix.exchange import Exchange, Traffic
from fedmix.flower import wire
from fedmix.flower.exchange import Asked
from fedmix.flower.ledger import Ledger
from fedmix.flower.logs import log, log_here
from fedmix.flower.messages import POLL_SECONDS, Post, content_of
from fedmix.flower.owner import Given, data_of
from fedmix.flower.roster import Roster, TooFew
from fedmix.flower.settings import Settings
from fedmix.flower.terms import Terms, check_exchange, check_named
from fedmix.objectives.base import Needs
from fedmix.privacy.accounting import DELTA, Guarantee, Level, Neighbours
from fedmix.privacy.of_run import guarantee_of
from fedmix.runs.folder import writing

PARTS = (
    "summary", "configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate",
)  # fmt: skip


class WithMeans(Strategy):
    """A strategy whose clients exchange means, as `share_means` lets their app do.

    Before a round, new nodes say who they are, those that are due send means, and those that train
    and lack the pool get it. Training, averaging and evaluation are the strategy's own. It sees
    only nodes that were let in: those with the same fedmix, experiment, shapes and classes.
    Other attributes than those of the exchange are the strategy's, also to set them.

    Args:
        strategy: Any strategy of Flower, or your own.
        exchange: What clients send; the same as in `share_means`.
        like: Some samples of the server's, in the form that `share_means` gets them: means must
            have their shape, and values of about their size.
        clients: Number of clients; their partition-ids are 0..clients-1.
        classes: Number of classes if labels are integers; None for vectors.
        experiment: Names what is trained; the same as in `share_means`.
        seed: Shuffles the pool.
        min_clients: The first round begins when so many clients have joined; 0 for all.
        join_timeout: Seconds to wait for them.
        timeout: Seconds to wait for means.
        attempts: How often the exchange is tried before a round, and a node asked who it is.
        ledger: File that counts what has left the clients, kept from run to run; without one, the
            counts end with the process.

    Attributes:
        traffic: The bytes of means that were sent.

    Raises:
        BadInput: A setting is out of range, the ledger cannot be used, or the exchange is none that
            a federation can do.
    """

    samples_are_here = False
    needs = Needs(means="batch")

    def __init__(
        self,
        strategy: Strategy,
        exchange: Exchange,
        *,
        like: Given,
        clients: int,
        classes: int | None = None,
        experiment: str = "",
        seed: int = 0,
        min_clients: int = 0,
        join_timeout: float = 120.0,
        timeout: float = 600.0,
        attempts: int = 3,
        ledger: Path | str | None = None,
    ) -> None:
        log_here()
        instance("strategy", strategy, Strategy, "give a strategy of Flower, such as FedAvg()")
        if isinstance(strategy, WithMeans):
            raise BadInput("this strategy exchanges means already; put it into one WithMeans")
        settings = Settings(
            clients, min_clients=min_clients, join_timeout=join_timeout, timeout=timeout,
            attempts=attempts,
        )  # fmt: skip
        check_named(experiment, seed)
        check_exchange(exchange, clients)
        self.enough, self.attempts = settings.enough, attempts
        self.data, self.traffic = data_of(like, classes), Traffic()
        self.asked: list[int] = []  # clients that train in this round
        terms = Terms.of(self.data, exchange, experiment)
        counted = Path(ledger) if ledger else None
        with writing(counted.parent) if counted else nullcontext():  # whether it can be made
            counts = Ledger(clients, counted)
        # the grid comes with the first round
        self.roster = Roster(Post(cast(Grid, None)), terms, clients, attempts, join_timeout)
        self.exchange = Asked(
            exchange, seed, clients, ledger=counts, roster=self.roster, data=self.data,
            seconds=timeout,
        )  # fmt: skip
        self.strategy = strategy

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the strategy itself."""
        if name == "strategy":  # before there is one
            raise AttributeError(name)
        return getattr(self.strategy, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the exchange, or else of the strategy itself."""
        mine = name in vars(self) or "strategy" not in vars(self)
        object.__setattr__(self if mine else self.strategy, name, value)

    def start(self, *args: Any, **kwargs: Any) -> Result:
        """Run the rounds as the strategy itself does, with means exchanged before each of them."""
        kind = type(self.strategy)
        parts = {name: property(partial(_part, whose=self, name=name)) for name in PARTS}
        exchanging: Strategy = object.__new__(type(kind.__name__, (kind,), parts))
        exchanging.__dict__ = self.strategy.__dict__  # so that what either notes, both have
        return exchanging.start(*args, **kwargs)

    def summary(self) -> None:
        """Log the settings of the exchange, and those of the strategy."""
        log.info("means are exchanged: %s", self.exchange.how)
        self.strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Exchange means, and return the strategy's messages to nodes that hold the pool.

        Raises:
            TooFew: Not enough clients joined in time, or sent means.
        """
        self.roster.post.grid = grid
        if not len(self.roster):
            self.exchange.welcome(self.roster.gather(self.enough))
        mine = self.strategy.configure_train(server_round, arrays, config, self._admitted(grid))
        messages = list(mine)
        self._gather(server_round - 1)
        at = {node: client for client, node in self.roster.node.items()}
        nodes = [message.metadata.dst_node_id for message in messages]
        training = self.roster.training
        chosen = [at[node] for node in nodes if at.get(node) in training]
        self.asked, sent = self.exchange.hand_out(server_round - 1, chosen)
        self.traffic += sent
        return [m for m, node in zip(messages, nodes, strict=True) if at.get(node) in self.asked]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Let the strategy aggregate the replies; note whose data changed, and who lost the pool.

        A client that says that it is someone else is left out. Who does not reply well may have
        failed without the pool, and gets it again before it trains again.
        """
        kept, at = list[Message](), {node: client for client, node in self.roster.node.items()}
        replies, lost = list(replies), set(self.asked)
        for reply in _answers(replies):
            client = at.get(reply.metadata.src_node_id)
            if client is None:
                log.warning("a node replies that was not let in, or is gone; it is left out")
                continue
            try:
                said = wire.Presence.read(reply.content, self.exchange.clients)
                self.exchange.notice(said.after(self.roster.presence[client]))
            except wire.Rejected as error:
                self.roster.reject(server_round - 1, client, error)
                continue
            if said.holds == self.exchange.version:
                lost.discard(client)
            del reply.content[wire.OURS]
            kept.append(reply)
        if lost:
            log.info("clients %s get the pool again before they train again", sorted(lost))
            self.exchange.lost(lost)
        failed = [reply for reply in replies if reply.has_error()]
        return self.strategy.aggregate_train(server_round, kept + failed)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the strategy's messages to nodes that were let in."""
        return self.strategy.configure_evaluate(server_round, arrays, config, self._admitted(grid))

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Let the strategy aggregate what clients did not refuse."""
        replies = list(replies)
        failed = [reply for reply in replies if reply.has_error()]
        return self.strategy.aggregate_evaluate(server_round, _answers(replies) + failed)

    def guarantee(
        self, delta: float = DELTA, *, neighbours: Neighbours = "replace", level: Level = "sample"
    ) -> Guarantee:
        """Return the (ε, δ) of the means released so far, as `fedmix.privacy.guarantee_of`."""
        return guarantee_of(self, delta, neighbours=neighbours, level=level)

    def sizes(self) -> Array:
        """Number of samples of each client that is online."""
        return np.array([said.samples for said in self.roster.presence.values()], np.int64)

    def state(self) -> dict[str, Tensor]:
        """Return the exchange as tensors, to be saved beside the weights.

        It holds the means.
        """
        return self.exchange.state()

    def restore(self, saved: dict[str, Tensor]) -> None:
        """Continue from a state: nobody sends means again, and who trains gets the pool.

        Raises:
            BadInput: The state is damaged, or of another exchange.
        """
        self.exchange.restore(saved, self.data)

    def _admitted(self, grid: Grid) -> Grid:
        return cast(Grid, _Admitted(grid, self.exchange))

    def _gather(self, round_: int) -> None:
        for attempt in range(1, self.attempts + 1):
            try:
                self.traffic += self.exchange.gather(round_, attempt, self.data.units)
                return
            except TooFew as error:
                log.warning("round %s, attempt %s: %s", round_ + 1, attempt, error)
                if attempt == self.attempts:
                    raise
                time.sleep(POLL_SECONDS)
                self.exchange.welcome(self.roster.call())


class _Admitted:
    """The grid as a strategy sees it, which may wait for nodes: those that were let in."""

    def __init__(self, grid: Grid, exchange: Asked) -> None:
        self.grid, self.exchange = grid, exchange

    def __getattr__(self, name: str) -> Any:
        return getattr(self.grid, name)

    def get_node_ids(self) -> Iterable[int]:
        """Ask new nodes who they are, and return those that are let in."""
        self.exchange.welcome(self.exchange.roster.call())
        return list(self.exchange.roster.node.values())


def _part(_: Strategy, whose: WithMeans, name: str) -> Any:
    return getattr(whose, name)


def _answers(replies: list[Message]) -> list[Message]:
    """Return the replies that neither failed nor refuse; log why the others do."""
    return [
        reply
        for reply in replies
        if content_of(reply, f"node {reply.metadata.src_node_id}") is not None
    ]
