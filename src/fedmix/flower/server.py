"""The server's side: it calls the roll, has means exchanged, and runs the rounds over Flower's grid."""

import json
import logging
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from fedmix.errors import BadInput, FedmixError
from fedmix.exchange import MeanExchange, Releases, Traffic
from fedmix.federation import Rounds, device_named
from fedmix.flower import wire
from fedmix.flower.settings import Settings
from fedmix.flower.task import Task
from fedmix.flower.wire import Presence, Rejected
from fedmix.plan import choose_clients
from fedmix.rng import stream
from fedmix.runs import Run
from fedmix.server import Updates, average

POLL_SECONDS = 0.5
log = logging.getLogger("fedmix.flower")


class TooFew(FedmixError):
    """Not enough clients were there, or replied well."""


def server_app(task: Task) -> ServerApp:
    """The ServerApp of a task: trains and writes a run folder, or goes on with the one that is there."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(grid, task, Settings.of(context.run_config), context.run_config)

    return app


def folder_of(task: Task, out: Path) -> Path:
    """Where a task's run goes; a local run of the same experiment has a folder beside it."""
    return out / f"{task.experiment.id}-flower"


def serve(grid: Grid, task: Task, settings: Settings, config: Mapping[str, Any]) -> dict[str, Any]:
    """Run a task to its end, from its checkpoint if there is one; the summary."""
    folder = folder_of(task, Path(settings.out))
    folder.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(folder / "federation.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        return Run(task.experiment, folder, lambda: Remote(grid, task, settings, config)).execute(
            lambda line: log.info("round %s: %s", line["round"], json.dumps(line)), checkpoint_seconds=0.0
        )
    except FedmixError as error:
        log.error("%s", error)
        raise
    finally:
        log.removeHandler(handler)
        handler.close()


class Remote(Rounds):
    """The rounds of a federation whose clients are nodes of a Flower grid.

    `members` are the clients that are there, by number: their node and what they last said of themselves. `settled` is the
    digest of the data for which a client was last asked for means, 0 if it never was.
    """

    def __init__(self, grid: Grid, task: Task, settings: Settings, config: Mapping[str, Any]) -> None:
        tests = replace(task.held_out(config), test_clients=None)
        training, seed = task.training, task.experiment.seed
        if training.clients_per_round > settings.clients:
            raise BadInput(f"training.clients_per_round={training.clients_per_round} is more than the {settings.clients} clients")
        exchange = MeanExchange(task.exchange, seed, settings.clients) if task.exchange else None
        device = device_named(task.experiment.engine.device)
        super().__init__(task.model(tests), task.objective, training, tests, exchange, seed, device)
        self.grid, self.settings = grid, settings
        self.members: dict[int, tuple[int, Presence]] = {}
        self.settled = np.zeros(settings.clients, np.int64)
        self.unwelcome: dict[int, int] = {}  # how often a node's answer to the roll call was no good
        self.rejected = self.sent_up = self.sent_down = 0
        self._gather()

    def holdings(self) -> dict[str, Any]:
        """Classes and their counts stay with the clients."""
        sizes = [self.members[k][1].samples if k in self.members else 0 for k in range(self.settings.clients)]
        return {"classes": None, "sizes": sizes, "counts": []}

    # Who is there

    def _gather(self) -> None:
        """Wait until enough clients are there."""
        deadline = time.monotonic() + self.settings.join_timeout
        while True:
            if len(list(self.grid.get_node_ids())) >= self.settings.enough:
                self._call_roll()
            if len(self.members) >= self.settings.enough:
                return
            if time.monotonic() > deadline:
                raise TooFew(
                    f"{len(self.members)} of {self.settings.enough} clients came within {self.settings.join_timeout:g} s; "
                    "start the others, or lower min-clients"
                )
            time.sleep(POLL_SECONDS)

    def _call_roll(self) -> None:
        """Ask nodes that are new who they are, and strike off those that are gone."""
        online = set(self.grid.get_node_ids())
        for client in [k for k, (node, _) in self.members.items() if node not in online]:
            log.warning("client %s is gone", client)
            del self.members[client]
        known = {node for node, _ in self.members.values()}
        new = [node for node in online - known if self.unwelcome.get(node, 0) < self.settings.attempts]
        replies = self._ask("query.join", {node: RecordDict() for node in new}, min(self.settings.timeout, 60.0))
        for node in new:
            content = self._content(f"node {node}", replies.get(node))
            try:
                if content is None:
                    raise Rejected("it did not say who it is")
                self._welcome(node, Presence.read(content, self.settings.clients))
            except Rejected as error:
                self.unwelcome[node] = self.unwelcome.get(node, 0) + 1
                log.warning("node %s is not let in: %s", node, error)

    def _welcome(self, node: int, presence: Presence) -> None:
        client = presence.client
        if client in self.members:
            log.warning("node %s says that it is client %s, which is another node that is there; it has to wait", node, client)
            return
        self.members[client] = node, presence
        log.info("client %s is there, as node %s, with %s samples", client, node, presence.samples)
        if self.exchange:
            self.exchange.lost([client])
            if not self._released(client):
                self.settled[client] = 0  # its policy may be another one now
            self._notice(presence)

    def _notice(self, presence: Presence) -> None:
        """Take note of what a client says of itself: its data may have changed since it was last asked for means."""
        client = presence.client
        self.members[client] = self.members[client][0], presence
        if self.exchange and self.settled[client] not in (0, presence.digest) and client not in self.exchange.pending:
            log.info("the data of client %s changed", client)
            self.exchange.changed([client])

    def _released(self, client: int) -> bool:
        releases = self.exchange.releases if self.exchange else None
        return releases is not None and client in releases.owner

    # Messages

    def _ask(self, kind: str, contents: Mapping[int, RecordDict], timeout: float) -> dict[int, Message]:
        """Send each node its message, and wait for the replies; by node, since an error's sender is not the node."""
        if not contents:
            return {}
        deadline = time.monotonic() + timeout
        messages = [
            Message(c, dst_node_id=n, message_type=kind, ttl=timeout, group_id=str(self.round)) for n, c in contents.items()
        ]
        self.sent_down += sum(wire.size(content) for content in contents.values())
        waiting = dict(zip(self.grid.push_messages(messages), contents, strict=True))
        replies: dict[int, Message] = {}
        while waiting:
            for reply in self.grid.pull_messages(list(waiting)):
                node = waiting.pop(reply.metadata.reply_to_message_id)
                replies[node] = reply
                self.sent_up += wire.size(reply.content) if reply.has_content() else 0
            if not waiting or time.monotonic() > deadline:
                break
            time.sleep(POLL_SECONDS)
        return replies

    def _content(self, who: str, reply: Message | None) -> RecordDict | None:
        """What a reply says, or None if there is none, with a line in the log."""
        if reply is None:
            log.warning("round %s: no reply from %s in time", self.round + 1, who)
        elif reply.has_error():
            log.warning("round %s: no reply from %s: %.300s", self.round + 1, who, reply.error.reason)
        elif (reason := wire.refused(reply.content)) is not None:
            log.warning("round %s: %s refuses: %s", self.round + 1, who, reason)
        else:
            return reply.content
        return None

    def _reject(self, client: int, error: Rejected) -> None:
        self.rejected += 1
        log.warning("round %s: a reply of client %s is rejected: %s", self.round + 1, client, error)

    # The exchange

    def _exchange_means(self) -> Traffic:
        """Have those clients send means that are due, and pool them."""
        exchange, layer = self.exchange, self.needs.layer
        assert exchange is not None
        new = [k for k in self.members if not self.settled[k]]
        changed = [k for k in exchange.pending if k in self.members]
        waits = len(exchange.pending) / self.settings.clients < exchange.how.wait
        due = sorted(self.members) if layer else sorted({*new, *([] if waits else changed)})
        sent, done = self._collect(due)
        traffic = Traffic(models_down=(self._model_bytes(0) - self._model_bytes(layer)) * len(due) if layer else 0)
        if layer:
            done = list(range(self.settings.clients))  # states of an older encoder are of no use
        if sent or any(self._released(k) for k in done):
            traffic = traffic + exchange.take(np.array(done), sent, self.data)
            log.info(
                "round %s: version %s of the pool has %s entries", self.round + 1, exchange.version, len(exchange.pool or ())
            )
        if exchange.pool is None:
            raise TooFew("no client has sent means, without which this objective cannot train; the log says why")
        return traffic

    def _collect(self, due: list[int]) -> tuple[list[Releases], list[int]]:
        """The means of the clients that are due, and those of them that need not be asked again."""
        exchange, how = self.exchange, self.exchange.how if self.exchange else None
        assert exchange is not None and how is not None
        question = json.dumps({k: v for k, v in asdict(how).items() if k in ("m", "split", "cutoff", "noise")})
        layer = self.needs.layer
        head = self.model.head(layer) if layer else None
        shape = tuple(head(self.params, self.data.inputs(self.data.test_x[:1]).to(self.device)).shape[1:]) if head else tuple(
            self.data.units(self.data.test_x[:1]).shape[1:]
        )  # fmt: skip
        contents = {}
        for k in due:
            about = ConfigRecord({"exchange": question, "epoch": int(exchange.epoch[k]) + (k in exchange.pending) * 0})
            contents[self.members[k][0]] = RecordDict(
                {"about": about} | ({"weights": wire.pack({n: self.params[n] for n in head.names})} if head else {})
            )
        replies = self._ask("query.means", contents, self.settings.timeout)
        sent, done = [], []
        for k in due:
            node, presence = self.members[k]
            if node not in replies or replies[node].has_error():
                self._content(f"client {k}", replies.get(node))
                continue
            done.append(k)
            content = self._content(f"client {k}", replies[node])
            if content is None:
                self.settled[k] = presence.digest
                continue
            try:
                now = Presence.read(content, self.settings.clients)
                if now.client != k:
                    raise Rejected(f"it says that it is client {now.client} now")
                self.settled[k] = now.digest
                self._notice(now)
                if wire.said(content, "m", int):
                    means = wire.read_means(content, how, now.samples, shape, self.data.outputs, self.data.classes is not None)
                    sent.append(Releases(np.full(len(means.x), k), *means))
                else:
                    log.info("round %s: client %s is below the cut-off and sends no means", self.round + 1, k)
            except (Rejected, BadInput) as error:
                self._reject(k, Rejected(str(error)))
                self.settled[k] = presence.digest
                if self._released(k):
                    done.remove(k)  # what it sent before stays
        return sent, done

    # A round

    def _train_round(self) -> tuple[float, Traffic]:
        for attempt in range(1, self.settings.attempts + 1):
            try:
                return self._try_round()
            except TooFew as error:
                log.warning("round %s, attempt %s: %s", self.round + 1, attempt, error)
                if attempt == self.settings.attempts:
                    raise
                time.sleep(POLL_SECONDS)
        raise AssertionError

    def _try_round(self) -> tuple[float, Traffic]:
        self._call_roll()
        traffic = self._exchange_means() if self.exchange else Traffic()
        chosen = self._choose()
        updates, sent = self._collect_updates(chosen)
        least = math.ceil(self.settings.min_share * self.training.clients_per_round)
        if len(updates) < least:
            raise TooFew(f"{len(updates)} of {self.training.clients_per_round} clients replied well, and {least} are needed")
        samples = {k: u.presence.samples for k, u in updates.items()}
        self.params, loss = average((_chunk(k, updates[k], self.device) for k in chosen if k in updates), samples)
        for update in updates.values():
            self._notice(update.presence)
        self.notes = {
            "asked": len(chosen), "replied": len(updates), "rejected": self.rejected, "clients": len(self.members),
            "pool_version": self.exchange.version if self.exchange else 0,
            "sent_up": self.sent_up, "sent_down": self.sent_down,
        }  # fmt: skip
        return loss, traffic + sent

    def _choose(self) -> list[int]:
        """The clients that every engine would choose; for those that are not there, others that are."""
        count = self.training.clients_per_round
        drawn = choose_clients(self.seed, self.round, self.settings.clients, count).tolist()
        here = [k for k in drawn if k in self.members]
        others = sorted(set(self.members) - set(here))
        instead = stream(self.seed, "substitutes", self.round).permutation(others)[: count - len(here)].tolist()
        return here + instead

    def _collect_updates(self, chosen: list[int]) -> tuple[dict[int, wire.Update], Traffic]:
        """The good updates of these clients; whoever turns out to lack the pool gets it and is asked once more."""
        updates: dict[int, wire.Update] = {}
        asked, traffic = chosen, Traffic()
        weights = wire.pack(self.params)
        deadline = time.monotonic() + self.settings.timeout
        while asked:
            contents, sent = self._work(asked, weights)
            traffic = traffic + sent
            replies = self._ask("train", contents, max(1.0, deadline - time.monotonic()))
            lacking = []
            for k in asked:
                node, presence = self.members[k]
                content = self._content(f"client {k}", replies.get(node))
                if content is None:
                    self._lost([k])
                elif asked is chosen and self.exchange and _lacks(content):
                    lacking.append(k)
                else:
                    traffic = traffic + Traffic(models_up=self._model_bytes(0))
                    try:
                        limits = self.settings.clients, self.params, self.settings.largest_update
                        updates[k] = wire.read_update(content, self.round, presence, *limits)
                    except Rejected as error:
                        self._reject(k, error)
            self._lost(lacking)
            asked = lacking
        return updates, traffic

    def _lost(self, clients: Iterable[int]) -> None:
        if self.exchange:
            self.exchange.lost(clients)

    def _work(self, clients: list[int], weights: ArrayRecord) -> tuple[dict[int, RecordDict], Traffic]:
        """What each of these clients gets: the weights, and the pool if it does not hold it."""
        exchange = self.exchange
        contents, traffic = {}, Traffic(models_down=self._model_bytes(0) * len(clients))
        whole = wire.pack({"x": exchange.pool.x, "y": exchange.pool.y}) if exchange and exchange.pool else None
        for k in clients:
            about: dict[str, int] = {"round": self.round}
            records: dict[str, Any] = {"weights": weights}
            if exchange and whole is not None:
                about["pool"] = exchange.version
                if exchange.holds[k] != exchange.version:
                    records["pool"] = whole if not exchange.how.exclude_own else _with_entries(whole, exchange.entries_for(k))
                traffic = traffic + exchange.deliver([k])
            contents[self.members[k][0]] = RecordDict({"about": ConfigRecord(about), **records})  # type: ignore[dict-item]
        return contents, traffic

    # Going on later

    def state(self) -> dict[str, Tensor]:
        counts = torch.tensor([self.rejected, self.sent_up, self.sent_down])
        return super().state() | {"remote.settled": torch.from_numpy(self.settled.copy()), "remote.counts": counts}

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Go on from a state; clients keep nothing of a run that ended, so they get the pool once more, but send no means."""
        super().restore(saved)
        self.settled = saved["remote.settled"].numpy().copy()
        self.rejected, self.sent_up, self.sent_down = saved["remote.counts"].tolist()
        self._lost(range(self.settings.clients))
        for _, presence in list(self.members.values()):
            self._notice(presence)


def _lacks(content: RecordDict) -> bool:
    about = content.get("about")
    return isinstance(about, ConfigRecord) and "lacks" in about


def _with_entries(pool: ArrayRecord, entries: np.ndarray[Any, Any]) -> ArrayRecord:
    return ArrayRecord({**pool, **wire.pack({"entries": torch.from_numpy(entries)})})


def _chunk(client: int, update: wire.Update, device: torch.device) -> Updates:
    params = {name: p[None].to(device) for name, p in update.params.items()}
    return Updates([client], params, torch.tensor([update.loss], device=device))
