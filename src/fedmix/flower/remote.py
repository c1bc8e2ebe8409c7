"""Rounds over Flower's grid: the server calls the roll, exchanges means, and averages updates."""

import logging
import math
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedmix.core.devices import device_named
from fedmix.core.errors import BadInput
from fedmix.core.rng import Noise, SecretNoise, stream
from fedmix.core.types import Array, Params
from fedmix.data.federated import FederatedData, HeldOut
from fedmix.data.ragged import Ragged
from fedmix.exchange import Traffic
from fedmix.flower import wire
from fedmix.flower.exchange import Asked
from fedmix.flower.ledger import Ledger
from fedmix.flower.messages import POLL_SECONDS, Post, content_of
from fedmix.flower.roster import Roster, TooFew
from fedmix.flower.settings import Settings
from fedmix.flower.task import Task
from fedmix.flower.terms import Terms, check_exchange
from fedmix.flower.wire import Rejected
from fedmix.models.functional import Model
from fedmix.training.aggregation import Average, Updates
from fedmix.training.checks import check_objective, check_server_step
from fedmix.training.draws import choose_clients
from fedmix.training.known import Memory
from fedmix.training.rounds import Rounds

log = logging.getLogger("fedmix.flower")


def prepared(
    task: Task, settings: Settings, config: Mapping[str, Any]
) -> tuple[FederatedData, Model, torch.device]:
    """Check the server's side of a task, and return its samples, its model and its device.

    Raises:
        BadInput: The settings do not fit the number of clients, or the samples, the model, the
            objective, the server step or the device do not work.
    """
    tests = _held_out(task.held_out(config))
    if task.training.per_round(settings.clients) > settings.clients:
        raise BadInput(
            f"training.clients_per_round={task.training.clients_per_round} is more than the "
            f"{settings.clients} clients"
        )
    if task.exchange is not None:
        check_exchange(task.exchange, settings.clients)
    device, model = device_named(task.experiment.engine.device), task.model(tests)
    check_objective(task.objective, model, tests)
    check_server_step(task.experiment.build_server(), model)
    return tests, model, device


class Remote(Rounds):
    """The rounds of a federation whose clients are nodes of a Flower grid.

    Args:
        grid: Flower's grid.
        task: The experiment and the data of both sides.
        settings: How the server runs it.
        config: The run configuration, for the task's own functions.
        releases: File that counts what has left clients; without it the counts end with the
            process.

    Raises:
        BadInput: The settings do not fit the number of clients, or the model or device do not work.
        TooFew: Not enough clients joined in time.
    """

    exchange: Asked | None

    def __init__(
        self,
        grid: Grid,
        task: Task,
        settings: Settings,
        config: Mapping[str, Any],
        releases: Path | None = None,
    ) -> None:
        tests, model, device = prepared(task, settings, config)
        training, seed, how = task.training, task.experiment.seed, task.exchange
        self.post = Post(grid, settings.at_once)
        terms = Terms.of(tests, how, task.experiment.identity)
        self.roster = Roster(
            self.post, terms, settings.clients, settings.attempts, settings.join_timeout
        )
        exchange = (
            Asked(
                how, seed, settings.clients, ledger=Ledger(settings.clients, releases),
                roster=self.roster, data=tests, seconds=settings.timeout,
            )
            if how
            else None
        )  # fmt: skip
        server = task.experiment.build_server()
        super().__init__(
            model, task.objective, training, tests, exchange, server, seed, device,
            settings.clients, updates=task.updates,
        )  # fmt: skip
        self.settings = settings
        self.attempt = 0
        self.chosen = np.zeros(settings.clients, np.int64)  # for how many rounds each client was
        self._accepted: dict[int, int] = {}  # the last round in which a client's update was used
        self._traffic = Traffic()
        came = self.roster.gather(settings.enough)
        if self.exchange:
            self.exchange.welcome(came)

    samples_are_here = False

    def holdings(self) -> dict[str, Any]:
        """Return the sizes of clients; classes and their counts stay with the clients."""
        known = self.roster.presence
        sizes = [known[k].samples if k in known else 0 for k in range(self.settings.clients)]
        return {"classes": None, "sizes": sizes, "counts": []}

    def versions(self) -> dict[str, str]:
        """Return the versions of Flower of the server, and of the clients that have joined."""
        theirs = Counter(self.roster.flower.values())
        said = ", ".join(f"{count} with Flower {v}" for v, count in sorted(theirs.items()))
        return {"flower": self.roster.terms.flower, "clients": said}

    def took_part(self) -> tuple[int, int, int]:
        """Return how often one client was chosen, at most: all know the seed that chooses them.

        Whether its update was then used may depend on its data, and so gets no credit.
        """
        return int(self.chosen.max()), 1, 1

    def sizes(self) -> Array:
        """Number of samples of each client that is online."""
        return np.array([presence.samples for presence in self.roster.presence.values()])

    def _train_round(self) -> tuple[Params, float, Traffic]:
        self._traffic = Traffic()
        for attempt in range(1, self.settings.attempts + 1):
            self.attempt = attempt
            try:
                return *self._try_round(), self._traffic
            except TooFew as error:
                log.warning("round %s, attempt %s: %s", self.round + 1, attempt, error)
                if attempt == self.settings.attempts:
                    raise
                time.sleep(POLL_SECONDS)
        raise AssertionError

    def _undo(self, before: Mapping[str, Any]) -> None:
        super()._undo(before)
        if self.exchange:
            self.exchange.recall()

    def _try_round(self) -> tuple[Params, float]:
        came = self.roster.call()
        if self.exchange:
            self.exchange.welcome(came)
            self._exchange_means(self.exchange)
        wanted = self.training.per_round(self.settings.clients)
        chosen = self._choose(wanted)
        updates = self._collect_updates(chosen)
        least = math.ceil(self.settings.min_share * wanted - 1e-9)  # 0.07 * 100 is above 7
        if len(updates) < least:
            raise TooFew(f"{len(updates)} of {wanted} clients replied well, and {least} are needed")
        samples = {k: update.presence.samples for k, update in updates.items()}
        average = Average(self.params, samples, self.updates)
        for k in chosen:
            if k in updates:
                average.add(_chunk(k, updates[k], self.device))
        self.chosen = self.chosen.copy()
        self.chosen[chosen] += 1
        if self.memory:
            self.memory.add(updates[k].sent for k in chosen if k in updates)
            self._accepted = self._accepted | dict.fromkeys(updates, self.round)
        for update in updates.values():
            (self.exchange or self.roster).notice(update.presence)
        self.notes = {
            "asked": len(chosen), "replied": len(updates), "rejected": self.roster.rejected,
            "clients": len(self.roster),
            "pool_version": self.exchange.version if self.exchange else 0,
            "sent_up": self.post.up, "sent_down": self.post.down,
        }  # fmt: skip
        return self._mean(average), average.loss

    def _update_noise(self) -> Noise:
        """Return what draws the noise on this round's sum; nobody can draw it again."""
        return SecretNoise()

    def _choose(self, count: int) -> list[int]:
        """Return the clients that every engine would choose, others in place of absent ones."""
        drawn: list[int] = choose_clients(
            self.seed, self.round, self.settings.clients, count
        ).tolist()
        here = [k for k in drawn if k in self.roster.training]
        others = sorted(self.roster.training - set(here))
        instead: list[int] = (
            stream(self.seed, "substitutes", self.round)
            .permutation(others)[: count - len(here)]
            .tolist()
        )
        return here + instead

    def _exchange_means(self, exchange: Asked) -> None:
        """Let the clients send the means that are due, of samples or of hidden states."""
        weights = None
        if layer := self.needs.layer:
            weights = wire.pack({n: self.params[n] for n in self.model.head(layer).names})
            encoder = self._model_bytes(0) - self._model_bytes(layer)
            self._traffic += Traffic(models_down=encoder * len(self.roster))
        self._traffic += exchange.gather(self.round, self.attempt, self._encode, weights)

    def _collect_updates(self, chosen: list[int]) -> dict[int, wire.Update]:
        """Return the valid updates of these clients, by client.

        Those that lack the pool get it first; who replies that it lost it, again, once.
        """
        updates: dict[int, wire.Update] = {}
        limits = (
            self.settings.clients, self.params, self.settings.largest_update,
            self.memory.shared if self.memory else None,
        )  # fmt: skip
        weights, deadline = wire.pack(self.params), time.monotonic() + self.settings.timeout
        asked = chosen
        for first in (True, False):
            if self.exchange:
                asked, sent = self.exchange.hand_out(self.round, asked)
                self._traffic += sent
            contents = {k: self._work(k, weights) for k in asked}
            replies = self.roster.ask("train", contents, max(1.0, deadline - time.monotonic()))
            lost, asked = list[int](), list[int]()
            for k in contents:
                content = content_of(replies.get(k), f"client {k}")
                if content is None:
                    lost.append(k)
                elif first and self._has_lost_the_pool(content):
                    asked.append(k)
                else:
                    self._traffic += Traffic(models_up=self._model_bytes(0) + self._state_bytes())
                    try:
                        updates[k] = wire.read_update(
                            content, self.round, self.roster.presence[k], *limits
                        )
                    except Rejected as error:
                        self.roster.reject(self.round, k, error)
            if self.exchange:
                self.exchange.lost(lost + asked)
            if not asked:
                break
            log.info("round %s: clients %s lack the pool and get it again", self.round + 1, asked)
        return updates

    def _has_lost_the_pool(self, content: RecordDict) -> bool:
        """Whether a client replies with nothing, since it does not hold the pool any more."""
        if not self.exchange or "weights" in content:
            return False
        return wire.holds(content) != self.exchange.version

    def _work(self, client: int, weights: ArrayRecord) -> RecordDict:
        """Return the message for a client: the weights, and which pool to use with them."""
        exchange = self.exchange
        about = ConfigRecord({"round": self.round, "pool": exchange.version if exchange else 0})
        content = RecordDict({"about": about, "weights": weights})
        if self.memory:
            content["shared"] = wire.pack(self.memory.shared)
            about["kept"] = self._accepted.get(client, -1)
        self._traffic += Traffic(models_down=self._model_bytes(0) + self._state_bytes())
        return content

    def state(self) -> dict[str, Tensor]:
        """Return the state of any federation, and counts."""
        counts = [self.roster.rejected, self.post.up, self.post.down]
        chosen = {"remote.chosen": torch.from_numpy(self.chosen)} if self.updates else {}
        return super().state() | {"remote.counts": torch.tensor(counts), **chosen}

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Continue from a saved state; clients keep nothing of a run that ended."""
        super().restore(saved)
        if self.memory and self.round:
            self.memory = Memory(self.memory.how, self.params, self.settings.clients)
            log.warning("clients keep nothing of a run that ended; what they kept begins anew")
        self.roster.rejected, up, down = saved["remote.counts"].tolist()
        if self.updates:
            self.chosen = saved["remote.chosen"].numpy()
        self.post.up += up
        self.post.down += down


def _held_out(given: FederatedData) -> FederatedData:
    """Return data whose only samples are those that the server tests on."""
    test = given.test or HeldOut(given.x, given.y)
    test = HeldOut(test.x, test.y)
    return replace(given, x=test.x, y=test.y, clients=Ragged.of([[0]]), test=test)


def _chunk(client: int, update: wire.Update, device: torch.device) -> Updates:
    params = {name: p[None].to(device) for name, p in update.params.items()}
    return Updates([client], params, torch.tensor([update.loss], device=device))
