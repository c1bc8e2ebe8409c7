"""Rounds over Flower's grid: the server calls the roll, exchanges means, and averages updates."""

import logging
import math
import time
from collections.abc import Iterable, Mapping
from copy import copy
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
from fedmix.core.rng import stream
from fedmix.core.types import Array, Params
from fedmix.data.federated import FederatedData, HeldOut, Ragged
from fedmix.exchange import Means, Releases, Traffic
from fedmix.flower import wire
from fedmix.flower.exchange import Asked, collect_means
from fedmix.flower.ledger import Ledger
from fedmix.flower.messages import POLL_SECONDS, Post, content_of
from fedmix.flower.roster import Roster, TooFew
from fedmix.flower.settings import Settings
from fedmix.flower.task import Task
from fedmix.flower.wire import Presence, Rejected
from fedmix.training.aggregation import Updates, average
from fedmix.training.checks import check_objective, check_server_step
from fedmix.training.draws import choose_clients
from fedmix.training.known import Memory
from fedmix.training.rounds import Rounds

LOOKED_AT = 256  # samples of the server that show how large values are
log = logging.getLogger("fedmix.flower")


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
        tests = _held_out(task.held_out(config))
        training, seed, how = task.training, task.experiment.seed, task.exchange
        if training.clients_per_round > settings.clients:
            raise BadInput(
                f"training.clients_per_round={training.clients_per_round} is more than the "
                f"{settings.clients} clients"
            )
        if how is not None and how.secure and how.average > settings.clients:
            raise BadInput(
                f"exchange.average={how.average} clients are in a sum, and there are "
                f"{settings.clients} clients; lower it"
            )
        exchange = (
            Asked(how, seed, settings.clients, ledger=Ledger(settings.clients, releases))
            if how
            else None
        )
        device = device_named(task.experiment.engine.device)
        model = task.model(tests)
        check_objective(task.objective, model, tests)
        server = task.experiment.build_server()
        check_server_step(server, model)
        super().__init__(
            model, task.objective, training, tests, exchange, server, seed, device, settings.clients
        )  # fmt: skip
        self.settings = settings
        self.rejected = self.attempt = 0
        self._accepted: dict[int, int] = {}  # the last round in which a client's update was used
        self._traffic = Traffic()
        self.post = Post(grid, settings.at_once)
        self.roster = Roster(self.post, settings.clients, settings.attempts, settings.join_timeout)
        self._welcome(self.roster.gather(settings.enough))

    samples_are_here = False

    def holdings(self) -> dict[str, Any]:
        """Return the sizes of clients; classes and their counts stay with the clients."""
        known = self.roster.presence
        sizes = [known[k].samples if k in known else 0 for k in range(self.settings.clients)]
        return {"classes": None, "sizes": sizes, "counts": []}

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
        self._welcome(self.roster.call())
        if self.exchange:
            self._exchange_means(self.exchange)
        wanted = self.training.clients_per_round
        chosen = self._choose(wanted)
        updates = self._collect_updates(chosen)
        least = math.ceil(self.settings.min_share * wanted - 1e-9)  # 0.07 * 100 is above 7
        if len(updates) < least:
            raise TooFew(f"{len(updates)} of {wanted} clients replied well, and {least} are needed")
        samples = {k: update.presence.samples for k, update in updates.items()}
        mean, loss = average(
            (_chunk(k, updates[k], self.device) for k in chosen if k in updates), samples
        )
        if self.memory:
            self.memory.add(updates[k].sent for k in chosen if k in updates)
            self._accepted = self._accepted | dict.fromkeys(updates, self.round)
        for update in updates.values():
            self._notice(update.presence)
        self.notes = {
            "asked": len(chosen), "replied": len(updates), "rejected": self.rejected,
            "clients": len(self.roster),
            "pool_version": self.exchange.version if self.exchange else 0,
            "sent_up": self.post.up, "sent_down": self.post.down,
        }  # fmt: skip
        return mean, loss

    def _choose(self, count: int) -> list[int]:
        """Return the clients that every engine would choose, others in place of absent ones."""
        drawn: list[int] = choose_clients(
            self.seed, self.round, self.settings.clients, count
        ).tolist()
        here = [k for k in drawn if k in self.roster]
        others = sorted(set(self.roster.node) - set(here))
        instead: list[int] = (
            stream(self.seed, "substitutes", self.round)
            .permutation(others)[: count - len(here)]
            .tolist()
        )
        return here + instead

    def _reject(self, client: int, error: Exception) -> None:
        self.rejected += 1
        log.warning("round %s: a reply of client %s is rejected: %s", self.round + 1, client, error)

    def _welcome(self, came: Iterable[int]) -> None:
        for client in came:
            if self.exchange:
                self.exchange.welcome(client)
            self._notice(self.roster.presence[client])

    def _notice(self, presence: Presence) -> None:
        self.roster.presence[presence.client] = presence
        if self.exchange:
            self.exchange.notice(presence)

    def _exchange_means(self, exchange: Asked) -> None:
        """Collect the means that are due, and make a pool of them."""
        layer, how, before = self.needs.layer, exchange.how, copy(exchange)
        due = exchange.due(self.roster.node, every_round=layer > 0)
        sent, done = self._collect(exchange, due) if due else ([], [])
        if layer:
            done = list(range(self.settings.clients))  # states of an older encoder are of no use
        kept = (
            []
            if exchange.releases is None
            else [exchange.releases.without(np.array(done, np.int64))]
        )
        count = sum(len(part.owner) for part in [*kept, *sent])
        if count < (1 if how.secure else how.average):
            if not how.secure:
                # so that all clients are asked again
                exchange.settled, exchange.pending = before.settled, before.pending
            raise TooFew(
                f"{count} means have been sent, and exchange.average={how.average} needs as many; "
                "lower it"
                if count
                else "no client has sent means, without which this objective cannot train"
            )
        if sent or any(map(exchange.has_sent, done)):
            self._traffic += exchange.take(np.array(done), sent, self.data)
            entries = len(exchange.pool or ())
            log.info(
                "round %s: version %s of the pool has %s entries",
                self.round + 1,
                exchange.version,
                entries,
            )

    def _collect(self, exchange: Asked, due: list[int]) -> tuple[list[Releases], list[int]]:
        """Return the means that clients send, and the clients whose earlier means they replace."""
        x, y = self.data.x[:LOOKED_AT], self.data.y[:LOOKED_AT]
        like, seconds = Means(self._encode(x), self.data.labels(y)), self.settings.timeout
        if exchange.how.secure:
            from fedmix.flower.secagg_server import collect_sums

            rng = stream(self.seed, "sums", self.round, self.attempt)
            sent, done, traffic = collect_sums(exchange, self.roster, due, seconds, like, rng)
            self._traffic += traffic
            return sent, done
        weights = {}
        if layer := self.needs.layer:
            weights["weights"] = wire.pack(
                {n: self.params[n] for n in self.model.head(layer).names}
            )
            self._traffic += Traffic(
                models_down=(self._model_bytes(0) - self._model_bytes(layer)) * len(due)
            )
        # A question says which means and when; how to make them is in the app, which both have.
        about = {
            k: ConfigRecord({"round": self.round, "epoch": int(exchange.epoch[k])}) for k in due
        }
        questions = {k: RecordDict({"about": about[k], **weights}) for k in due}
        # clipped labels are no shares, and may have noise
        shares = self.data.classes is not None and exchange.how.clip is None
        sent, done, wrong = collect_means(
            exchange, self.roster, questions, seconds, like, shares=shares
        )
        for client, error in wrong.items():
            self._reject(client, error)
        return sent, done

    def _collect_updates(self, chosen: list[int]) -> dict[int, wire.Update]:
        """Return the valid updates of these clients, by client.

        A client that replies that it lacks the pool gets it and is asked once more.
        """
        updates: dict[int, wire.Update] = {}
        like = self.memory.shared if self.memory else None
        weights, deadline = wire.pack(self.params), time.monotonic() + self.settings.timeout
        asked = chosen
        while asked:
            contents = dict[int, RecordDict]()
            for k in asked:
                try:
                    contents[k] = self._work(k, weights)
                except BadInput as error:  # every entry of the pool contains this client's means
                    self._reject(k, error)
            replies = self.roster.ask("train", contents, max(1.0, deadline - time.monotonic()))
            lacking = []
            for k in contents:
                content = content_of(replies.get(k), f"client {k}")
                if content is None and self.exchange:
                    self.exchange.lost([k])
                elif (
                    content is not None
                    and asked is chosen
                    and self.exchange
                    and wire.lacks(content)
                ):
                    lacking.append(k)
                elif content is not None:
                    self._traffic += Traffic(models_up=self._model_bytes(0) + self._state_bytes())
                    try:
                        limits = (
                            self.settings.clients,
                            self.params,
                            self.settings.largest_update,
                            like,
                        )
                        updates[k] = wire.read_update(
                            content, self.round, self.roster.presence[k], *limits
                        )
                    except Rejected as error:
                        self._reject(k, error)
            if self.exchange and lacking:
                log.info(
                    "round %s: clients %s lack the pool and get it again", self.round + 1, lacking
                )
                self.exchange.lost(lacking)
            asked = lacking
        return updates

    def _work(self, client: int, weights: ArrayRecord) -> RecordDict:
        """Return the message for a client: the weights, and the pool if it does not hold it."""
        exchange = self.exchange
        about = ConfigRecord({"round": self.round, "pool": exchange.version if exchange else 0})
        content = RecordDict({"about": about, "weights": weights})
        if exchange and exchange.pool and exchange.holds[client] != exchange.version:
            pool = {"x": exchange.pool.x, "y": exchange.pool.y}
            if exchange.how.exclude_own:
                pool["entries"] = torch.from_numpy(exchange.entries_for(client))
            content["pool"] = wire.pack(pool)
            self._traffic += exchange.deliver([client])
        if self.memory:
            content["shared"] = wire.pack(self.memory.shared)
            about["kept"] = self._accepted.get(client, -1)
        self._traffic += Traffic(models_down=self._model_bytes(0) + self._state_bytes())
        return content

    def state(self) -> dict[str, Tensor]:
        """Return the state of any federation, counts, and the digests in `Asked.settled`."""
        settled = (
            {"remote.settled": torch.from_numpy(self.exchange.settled)} if self.exchange else {}
        )
        return super().state() | {
            "remote.counts": torch.tensor([self.rejected, self.post.up, self.post.down]),
            **settled,
        }

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Continue from a saved state.

        Clients keep nothing of a run that ended, so they get the pool again, but send no means
        again.
        """
        super().restore(saved)
        if self.memory and self.round:
            self.memory = Memory(self.memory.how, self.params, self.settings.clients)
            log.warning("clients keep nothing of a run that ended; what they kept begins anew")
        self.rejected, up, down = saved["remote.counts"].tolist()
        self.post.up += up
        self.post.down += down
        if self.exchange:
            self.exchange.settled = saved["remote.settled"].numpy()
            self.exchange.lost(range(self.settings.clients))
            self.exchange.recall()
        self._welcome(self.roster.node)


def _held_out(given: FederatedData) -> FederatedData:
    """Return data whose only samples are those that the server tests on."""
    test = given.test or HeldOut(given.x, given.y)
    test = HeldOut(test.x, test.y)
    return replace(given, x=test.x, y=test.y, clients=Ragged.of([[0]]), test=test)


def _chunk(client: int, update: wire.Update, device: torch.device) -> Updates:
    params = {name: p[None].to(device) for name, p in update.params.items()}
    return Updates([client], params, torch.tensor([update.loss], device=device))
