"""The server's side: it calls the roll, has means exchanged, and runs the rounds over Flower's grid."""

import logging
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from fedmix.errors import BadInput, FedmixError
from fedmix.exchange import MeanExchange, Means, Releases, Traffic, split_at_random
from fedmix.federation import Rounds, device_named
from fedmix.files import refuse_link
from fedmix.flower import secure, wire
from fedmix.flower.ledger import Ledger
from fedmix.flower.post import POLL_SECONDS, Post, content_of
from fedmix.flower.roster import Roster, TooFew
from fedmix.flower.settings import Settings
from fedmix.flower.task import Task
from fedmix.flower.wire import Presence, Rejected
from fedmix.plan import choose_clients
from fedmix.rng import stream
from fedmix.runs import Run, writing
from fedmix.server import Updates, average

LOOKED_AT = 256  # samples of the server's own, to see how large values are
log = logging.getLogger("fedmix.flower")


def server_app(task: Task) -> ServerApp:
    """The ServerApp of a task: trains and writes a run folder, or goes on with the one that is there."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(grid, task, context.run_config)

    return app


def folder_of(task: Task, out: Path) -> Path:
    """Where a task's run goes; a local run of the same experiment has a folder beside it."""
    return out / f"{task.experiment.id}-flower"


def serve(grid: Grid, task: Task, config: Mapping[str, Any]) -> dict[str, Any]:
    """Run a task to its end, from its checkpoint if there is one; the summary."""
    settings = Settings.of(config)
    folder = folder_of(task, Path(settings.out))
    with writing(folder), _logging(folder / "federation.log"):
        run = Run(task.experiment, folder, lambda: Remote(grid, task, settings, config, folder / "releases.json"))
        try:
            return run.execute(_tell, command=settings.command, checkpoint_seconds=0.0)
        except Exception as error:
            log.error("%s%s", "" if isinstance(error, FedmixError) else f"{type(error).__name__}: ", error)
            raise


def _tell(line: Mapping[str, Any]) -> None:
    """Say in a line what a round came to; metrics.jsonl has all of it."""
    scores = {name: f"{line[name]:.4g}" for name in ("mse", "loss") if line.get(name) is not None}
    if line.get("accuracy") is not None:
        scores = {"accuracy": f"{100 * line['accuracy']:.1f} %", **scores}
    said = "".join(f", {name} {value}" for name, value in scores.items())
    log.info("round %s is done: %s of %s clients replied well%s", line["round"], line["replied"], line["asked"], said)


@contextmanager
def _logging(path: Path) -> Iterator[None]:
    """Into a file, and to the process's own output, which Flower streams to whoever started the run."""
    refuse_link(path)
    handlers = logging.FileHandler(path), logging.StreamHandler()
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        for handler in handlers:
            log.removeHandler(handler)
            handler.close()


class Remote(Rounds):
    """The rounds of a federation whose clients are nodes of a Flower grid.

    `settled` is, for each client, the digest of the data for which it was last asked for means; 0 if it never was. `releases` is
    the file that counts what has left clients; without one, that is known as long as the process lasts.
    """

    def __init__(
        self, grid: Grid, task: Task, settings: Settings, config: Mapping[str, Any], releases: Path | None = None
    ) -> None:
        tests = replace(task.held_out(config), test_clients=None)
        training, seed = task.training, task.experiment.seed
        if training.clients_per_round > settings.clients:
            raise BadInput(f"training.clients_per_round={training.clients_per_round} is more than the {settings.clients} clients")
        how = task.exchange
        if how is not None and how.secure and how.average > settings.clients:
            raise BadInput(
                f"exchange.average={how.average} clients are in a sum, and there are {settings.clients} clients; lower it"
            )
        exchange = MeanExchange(how, seed, settings.clients) if how else None
        device = device_named(task.experiment.engine.device)
        super().__init__(task.model(tests), task.objective, training, tests, exchange, seed, device)
        self.settings = settings
        self.settled = np.zeros(settings.clients, np.int64)
        self.rejected = self.attempt = 0
        self._traffic = Traffic()
        self.ledger = Ledger(settings.clients, releases)
        self._recall()
        self.post = Post(grid, settings.at_once)
        self.roster = Roster(self.post, settings.clients, settings.attempts, settings.join_timeout)
        self._welcome(self.roster.gather(settings.enough))

    def holdings(self) -> dict[str, Any]:
        """Classes and their counts stay with the clients."""
        known = self.roster.presence
        sizes = [known[k].samples if k in known else 0 for k in range(self.settings.clients)]
        return {"classes": None, "sizes": sizes, "counts": []}

    def _sizes(self) -> np.ndarray[Any, Any]:
        return np.array([presence.samples for presence in self.roster.presence.values()])

    def _nonnegative(self) -> bool:
        """Clients' samples come from their own function, and only they know."""
        return False

    def _train_round(self) -> tuple[float, Traffic]:
        self._traffic = Traffic()
        self.settled = self.settled.copy()  # what a round changes it replaces, so that it can be undone
        for attempt in range(1, self.settings.attempts + 1):
            self.attempt = attempt
            try:
                return self._try_round(), self._traffic
            except TooFew as error:
                log.warning("round %s, attempt %s: %s", self.round + 1, attempt, error)
                if attempt == self.settings.attempts:
                    raise
                time.sleep(POLL_SECONDS)
        raise AssertionError

    def _undo(self, before: Mapping[str, Any]) -> None:
        super()._undo(before)
        self._recall()

    def _recall(self) -> None:
        """What has left clients stays counted, in a round that failed and in a run that was stopped."""
        if self.exchange:
            self.exchange.count_at_least(self.ledger.sent, self.ledger.smallest)

    def _try_round(self) -> float:
        self._welcome(self.roster.call())
        if self.exchange:
            self._exchange_means(self.exchange)
        wanted = self.training.clients_per_round
        chosen = self._choose(wanted)
        updates = self._collect_updates(chosen)
        least = math.ceil(self.settings.min_share * wanted - 1e-9)  # 0.07 * 100 is 7.000000000000001
        if len(updates) < least:
            raise TooFew(f"{len(updates)} of {wanted} clients replied well, and {least} are needed")
        samples = {k: update.presence.samples for k, update in updates.items()}
        self.params, loss = average((_chunk(k, updates[k], self.device) for k in chosen if k in updates), samples)
        for update in updates.values():
            self._notice(update.presence)
        self.notes = {
            "asked": len(chosen), "replied": len(updates), "rejected": self.rejected, "clients": len(self.roster),
            "pool_version": self.exchange.version if self.exchange else 0,
            "sent_up": self.post.up, "sent_down": self.post.down,
        }  # fmt: skip
        return loss

    def _choose(self, count: int) -> list[int]:
        """The clients that every engine would choose; for those that are not there, others that are."""
        drawn: list[int] = choose_clients(self.seed, self.round, self.settings.clients, count).tolist()
        here = [k for k in drawn if k in self.roster]
        others = sorted(set(self.roster.node) - set(here))
        instead: list[int] = stream(self.seed, "substitutes", self.round).permutation(others)[: count - len(here)].tolist()
        return here + instead

    def _reject(self, client: int, error: Exception) -> None:
        self.rejected += 1
        log.warning("round %s: a reply of client %s is rejected: %s", self.round + 1, client, error)

    # What clients say of themselves

    def _welcome(self, came: list[int]) -> None:
        """A client that came holds no pool yet; one that has sent nothing is asked for means, for its policy may be another."""
        for client in came:
            if self.exchange:
                self.exchange.lost([client])
                if not self._has_sent(client):
                    self.settled[client] = 0
            self._notice(self.roster.presence[client])

    def _notice(self, presence: Presence) -> None:
        """A client's data may have changed since it was last asked for means.

        With `secure` nobody knows of how many samples it was in a sum: of as few as it has now, it is assumed.
        """
        client = presence.client
        self.roster.presence[client] = presence
        if self.exchange and self.exchange.how.secure and self.exchange.sent[client]:
            self.exchange.count_at_least(self.exchange.sent, max(presence.samples, self.exchange.how.cutoff))
            if self.exchange.smallest < self.ledger.smallest:
                self.ledger.write(self.exchange)
        if self.exchange and self.settled[client] not in (0, presence.digest) and client not in self.exchange.pending:
            log.info("the data of client %s changed", client)
            self.exchange.changed([client])

    def _has_sent(self, client: int) -> bool:
        if self.exchange is None or self.exchange.releases is None:
            return False
        return bool(self.exchange.sent[client]) if self.exchange.how.secure else client in self.exchange.releases.owner

    # The exchange

    def _exchange_means(self, exchange: MeanExchange) -> None:
        """Have those clients send means that are due, and pool them."""
        layer, here = self.needs.layer, sorted(self.roster.node)
        waits = len(exchange.pending) / self.settings.clients < exchange.how.wait
        again = frozenset() if waits or exchange.how.secure else exchange.pending
        due = [k for k in here if layer or not self.settled[k] or k in again]
        if layer:
            self._traffic += Traffic(models_down=(self._model_bytes(0) - self._model_bytes(layer)) * len(due))
        settled, pending = self.settled.copy(), exchange.pending
        sent, done = (self._collect_sums if exchange.how.secure else self._collect_means)(exchange, due)
        if layer:
            done = list(range(self.settings.clients))  # states of an older encoder are of no use
        kept = [] if exchange.releases is None else [exchange.releases.without(np.array(done, np.int64))]
        count = sum(len(part.owner) for part in [*kept, *sent])
        if count < (1 if exchange.how.secure else exchange.how.average):
            if not exchange.how.secure:
                self.settled, exchange.pending = settled, pending  # so that everyone is asked again
            raise TooFew(
                f"{count} means have been sent, and exchange.average={exchange.how.average} needs as many; lower it"
                if count
                else "no client has sent means, without which this objective cannot train"
            )
        if sent or any(self._has_sent(k) for k in done):
            self._traffic += exchange.take(np.array(done), sent, self.data)
            log.info(
                "round %s: version %s of the pool has %s entries", self.round + 1, exchange.version, len(exchange.pool or ())
            )

    def _expect(self, exchange: MeanExchange, clients: list[int]) -> int:
        """Write down that all of these clients release means; the fewest samples in one of them."""
        smallest = exchange.how.smallest_group(np.array([self.roster.presence[k].samples for k in clients]))
        everyone = copy(exchange)
        everyone.count(np.array(clients), smallest)
        self.ledger.write(everyone)
        return smallest

    def _collect_means(self, exchange: MeanExchange, due: list[int]) -> tuple[list[Releases], list[int]]:
        """What the clients that are due send, and those of them for which it takes the place of what they sent before."""
        if not due:
            return [], []
        agreed = self._expect(exchange, due)
        contents = {self.roster.node[k]: self._question(exchange, k) for k in due}
        replies = self.post.ask("query.means", contents, self.settings.timeout)
        plausible = self._plausible(exchange)
        sent, done = [], []
        for k in due:
            reply, presence = replies.get(self.roster.node[k]), self.roster.presence[k]
            content = content_of(reply, f"client {k}")
            if reply is None or reply.has_error():
                exchange.count(np.array([k]), agreed)  # they may have left the client, and got lost
                continue  # it is asked again in the next round
            before = exchange.sent[k]
            self.settled[k] = presence.digest
            exchange.pending -= {k}
            try:
                if content is not None:
                    sent += self._read_means(exchange, k, content, plausible)
                done.append(k)
            except FedmixError as error:
                if exchange.sent[k] == before:
                    exchange.count(np.array([k]), agreed)
                self._reject(k, error)
        self.ledger.write(exchange)
        return sent, done

    def _collect_sums(self, exchange: MeanExchange, due: list[int]) -> tuple[list[Releases], list[int]]:
        """Means over random groups of the clients that are due, one after the other, and the clients in them.

        Where one fails, the others of its group are put into another, unless they were asked for what takes the masks off: that
        may have left them, so it counts, and they take part in no other sum. A mean of several has the first as its owner.
        """
        from fedmix.flower.sums import Group

        how, (like, _), presence = exchange.how, self._plausible(exchange), self.roster.presence
        shapes = [(1,), *(tuple(part.shape[1:]) for part in like)]  # the first is Flower's, for weights
        rng, sent, done = stream(self.seed, "sums", self.round, self.attempt), list[Releases](), list[int]()
        waiting = [k for k in due if presence[k].samples >= how.cutoff]
        if len(waiting) < how.average:
            return [], []
        self._expect(exchange, waiting)
        while len(waiting) >= how.average:
            clients = [waiting[i] for i in sorted(split_at_random(len(waiting), how.average, rng)[0])]
            at = {self.roster.node[k]: k for k in clients}
            group = Group(self.post, self.settings.timeout, shapes)
            mean = group.mean(list(at), how)
            settled = clients if group.unmasked else [at[node] for node in group.refused]
            self.settled[settled] = [presence[k].digest for k in settled]
            if group.unmasked:
                exchange.count(np.array(clients), min(presence[k].samples for k in clients))
            if group.unmasked and not mean:
                log.warning("the sum of clients %s was lost at its last step, and they take part in no other", clients)
            if mean:
                self._traffic += Traffic(means_up=(2 * len(clients) - 1) * mean.bytes)  # each sends integers of 8 bytes
                if all(float(part.abs().max()) <= secure.largest(how) * (1 + 1e-6) for part in mean):
                    sent.append(Releases(np.array([clients[0]]), *mean))
                    done += clients
                else:
                    log.warning("the mean of clients %s is none, so that one of them broke the rules", clients)
            failed = [] if group.unmasked else [at[node] for node in group.refused | group.failed]
            waiting = [k for k in waiting if k not in (failed or clients)]
        self.ledger.write(exchange)
        return sent, done

    def _question(self, exchange: MeanExchange, client: int) -> RecordDict:
        """Which means, and when; how they are made is in the app, which both sides have."""
        question = RecordDict({"about": ConfigRecord({"round": self.round, "epoch": int(exchange.epoch[client])})})
        if self.needs.layer:
            question["weights"] = wire.pack({n: self.params[n] for n in self.model.head(self.needs.layer).names})
        return question

    def _plausible(self, exchange: MeanExchange) -> tuple[Means, tuple[float, float]]:
        """What means look like, by some samples of the server's own, and how large their values may be."""
        y = torch.from_numpy(np.ascontiguousarray(self.data.test_y[:LOOKED_AT]))
        like = Means(self._encode(self.data.test_x[:LOOKED_AT]), self.data.targets(y))
        x_noise, y_noise = exchange.how.noises
        limits = [10 * max(1.0, float(v.abs().max())) + 10 * s for v, s in ((like.x, x_noise), (like.y, y_noise))]
        return like, (limits[0], limits[1])

    def _read_means(
        self, exchange: MeanExchange, client: int, content: RecordDict, plausible: tuple[Means, tuple[float, float]]
    ) -> list[Releases]:
        presence = Presence.read(content, self.settings.clients)
        if presence.client != client:
            raise Rejected(f"it says that it is client {presence.client} now")
        self.settled[client] = presence.digest
        self.roster.presence[client] = presence
        m = wire.group_size(content, presence.samples)
        if not m and any(content.array_records.values()):
            raise Rejected("it sends means, and says that they are of no samples")
        if not m:
            log.info("client %s is below the cut-off and sends no means", client)
            return []
        labels = self.data.classes is not None and exchange.how.clip is None  # clipped ones are no shares, and may carry noise
        exchange.count(np.array([client]), m)  # it has left the client, good or not
        means = wire.read_means(content, exchange.how, presence.samples, *plausible, labels=labels)
        return [Releases(np.full(len(means.x), client), *means)]

    # The updates

    def _collect_updates(self, chosen: list[int]) -> dict[int, wire.Update]:
        """The good updates of these clients; whoever turns out to lack the pool gets it and is asked once more."""
        updates: dict[int, wire.Update] = {}
        weights, deadline = wire.pack(self.params), time.monotonic() + self.settings.timeout
        asked = chosen
        while asked:
            contents, able = dict[int, RecordDict](), list[int]()
            for k in asked:
                try:
                    contents[self.roster.node[k]] = self._work(k, weights)
                    able.append(k)
                except BadInput as error:  # every entry of the pool holds its means
                    self._reject(k, error)
            replies = self.post.ask("train", contents, max(1.0, deadline - time.monotonic()))
            lacking = []
            for k in able:
                content = content_of(replies.get(self.roster.node[k]), f"client {k}")
                if content is None and self.exchange:
                    self.exchange.lost([k])
                elif content is not None and asked is chosen and self.exchange and wire.lacks(content):
                    lacking.append(k)
                elif content is not None:
                    self._traffic += Traffic(models_up=self._model_bytes(0))
                    try:
                        limits = self.settings.clients, self.params, self.settings.largest_update
                        updates[k] = wire.read_update(content, self.round, self.roster.presence[k], *limits)
                    except Rejected as error:
                        self._reject(k, error)
            if self.exchange and lacking:
                log.info("round %s: clients %s lack the pool and get it again", self.round + 1, lacking)
                self.exchange.lost(lacking)
            asked = lacking
        return updates

    def _work(self, client: int, weights: ArrayRecord) -> RecordDict:
        """What a client gets: the weights, and the pool if it does not hold it."""
        exchange = self.exchange
        about = ConfigRecord({"round": self.round, "pool": exchange.version if exchange else 0})
        content = RecordDict({"about": about, "weights": weights})
        if exchange and exchange.pool and exchange.holds[client] != exchange.version:
            pool = {"x": exchange.pool.x, "y": exchange.pool.y}
            if exchange.how.exclude_own:
                pool["entries"] = torch.from_numpy(exchange.entries_for(client))
            content["pool"] = wire.pack(pool)
            self._traffic += exchange.deliver([client])
        self._traffic += Traffic(models_down=self._model_bytes(0))
        return content

    # Going on later

    def state(self) -> dict[str, Tensor]:
        """What every federation saves, and of which data clients have sent means."""
        counts = torch.tensor([self.rejected, self.post.up, self.post.down])
        return super().state() | {"remote.settled": torch.from_numpy(self.settled.copy()), "remote.counts": counts}

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Go on from a state; clients keep nothing of a run that ended, so they get the pool once more, but send no means."""
        super().restore(saved)
        self.settled = saved["remote.settled"].numpy().copy()
        self.rejected, up, down = saved["remote.counts"].tolist()
        self.post.up += up
        self.post.down += down
        if self.exchange:
            self.exchange.lost(range(self.settings.clients))
        self._recall()
        self._welcome(list(self.roster.node))


def _chunk(client: int, update: wire.Update, device: torch.device) -> Updates:
    params = {name: p[None].to(device) for name, p in update.params.items()}
    return Updates([client], params, torch.tensor([update.loss], device=device))
