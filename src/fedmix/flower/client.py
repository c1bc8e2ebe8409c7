"""The client's side: it loads its own samples, decides what leaves it, and trains.

Flower may start a process per message.
"""

import json
import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from fedmix.core.devices import device_named
from fedmix.core.errors import BadInput, ClientFailure, FedmixError
from fedmix.core.rng import stream
from fedmix.core.types import Params
from fedmix.data import federated
from fedmix.data.federated import FederatedData
from fedmix.exchange import Exchange, Means, release
from fedmix.exchange.pool import to_shares
from fedmix.flower import secagg, wire
from fedmix.flower.policy import Policy, Withheld
from fedmix.flower.task import Task
from fedmix.flower.wire import Refused, Rejected
from fedmix.kernels.precision import arithmetic
from fedmix.models.functional import Model
from fedmix.training.batches import Received, Resident
from fedmix.training.draws import draw_plan
from fedmix.training.engines import Sequential, Work
from fedmix.training.known import Known

MOST_EPOCHS = 1 << 32  # of a client's data
log = logging.getLogger("fedmix.flower")


def client_app(task: Task) -> ClientApp:
    """The ClientApp of a task: it answers `query.join`, `query.means` and `train`.

    A node's configuration names its client (`partition-id`), and may name a `policy` file and a
    `device`.
    """
    app = ClientApp()

    def answer(
        act: Callable[[Party, RecordDict, Context], RecordDict],
    ) -> Callable[[Message, Context], Message]:
        def handle(message: Message, context: Context) -> Message:
            try:
                party = Party.of(task, context)
                asked = message.content
                content = (
                    add_mean(party, message, context)
                    if secagg.asks(asked)
                    else act(party, asked, context)
                )
            except (
                Exception
            ) as error:  # what it says, and what it is called, may be data: it stays here
                _note(error)
                content = _refusal(error)
            return Message(content, reply_to=message)

        return handle

    app.query("join")(answer(join))
    app.query("means")(answer(send_means))
    app.train()(answer(train))
    return app


def _note(error: Exception) -> None:
    """Write to the node's own log what happened."""
    if isinstance(error, FedmixError):
        log.error("%s", error)
    else:  # whatever a load function or a module of the user's raises
        log.error("the client's app failed", exc_info=error)


def _refusal(error: Exception) -> RecordDict:
    """What the server is told of it."""
    if isinstance(error, ClientFailure):
        return wire.refusal("step", step=error.step)
    if isinstance(error, Refused):
        return wire.refusal(error.reason)
    return wire.refusal(
        "withheld"
        if isinstance(error, Withheld)
        else "message"
        if isinstance(error, Rejected)
        else "failed"
    )


@contextmanager
def _refusing(reason: str) -> Iterator[None]:
    """Have what goes wrong meanwhile told as this."""
    try:
        yield
    except Exception as error:
        _note(error)
        raise Refused(reason) from error


@dataclass(frozen=True)
class Party:
    """One client: its number, its samples, and the model."""

    task: Task
    client: int
    data: FederatedData
    model: Model
    device: torch.device
    policy: Policy

    @staticmethod
    def of(task: Task, context: Context) -> "Party":
        config = context.node_config
        client = config.get("partition-id")
        if type(client) is not int:
            raise Refused("number")
        with _refusing("policy"):
            policy = Policy.load(Path(str(config["policy"]))) if "policy" in config else Policy()
        with _refusing("data"):
            data = task.load(client, {**context.run_config, **config})
            if len(data.clients) != 1:
                raise BadInput(
                    f"the load function gave client {client} the data of {len(data.clients)}; use "
                    "fedmix.data.alone"
                )
        device = device_named(str(config.get("device", "cpu")))
        return Party(task, client, data, task.model(data).to(device), device, policy)

    @property
    def samples(self) -> int:
        return int(self.data.clients.sizes[0])

    @property
    def presence(self) -> wire.Presence:
        return wire.Presence(self.client, self.samples, self._digest())

    def _digest(self) -> int:
        """63 bits that change when the samples do.

        The same samples give others elsewhere: nobody sees that they are the same.
        """
        where = np.frombuffer(f"{self.task.experiment.identity} {self.client}".encode(), np.uint8)
        return int.from_bytes(federated.digest(where, self.data.x, self.data.y)[:8], "big") >> 1 | 1


def join(party: Party, asked: RecordDict, context: Context) -> RecordDict:  # noqa: ARG001 - as every answer
    """Say who this is."""
    return RecordDict({"about": party.presence.content()})


def send_means(party: Party, asked: RecordDict, context: Context) -> RecordDict:
    """Let means out: as the app's experiment says, or as the policy demands, and never as a message
    says.

    A run gets one answer for the same data, whatever it asks later: from means over other groups,
    or under other noise, a server could work out samples. Means of hidden states are new in every
    round, with one answer a round.
    """
    agreed = party.task.exchange
    if agreed is None:
        raise Refused("no means")
    if agreed.secure:
        raise Refused("sums only")
    how = party.policy.applied(agreed, party.client, party.samples)
    presence = party.presence
    if party.task.objective.needs.layer:
        question = f"round {_new_round(party, asked, context)}"
    else:
        question = json.dumps([presence.digest, asdict(party.policy)])
    about, answer = f"about {question}", f"means {question}"
    if about not in context.state:
        means = _release(
            party, how, _encoder(party, asked), _first_epoch(presence.digest, asked, context)
        )
        if (
            means
            and party.data.classes is not None
            and agreed.clip is None
            and how.clip is not None
        ):
            means = means._replace(
                y=to_shares(means.y)
            )  # the server expects shares, since it asked for no clipping
        m = how.group_size(party.client, party.samples) if means else 0
        context.state[answer] = wire.pack(means._asdict() if means else {})
        context.state[about] = presence.content(
            m=m, noise=float(agreed.noise)
        )  # what the policy adds is its own affair
    return RecordDict({"about": context.state[about], "means": context.state[answer]})


def add_mean(party: Party, message: Message, context: Context) -> RecordDict:
    """Take a step towards a sum over clients, to which this one adds its mean, hidden from
    everybody.
    """
    agreed = party.task.exchange
    if agreed is None or not agreed.secure:
        raise Refused("no sums")
    how = party.policy.applied(agreed, party.client, party.samples)
    if party.samples < how.cutoff:
        raise Refused("cut-off")

    def mean() -> list[Any]:
        means = _release(party, how, party.data.units)
        assert means is not None
        return [part[0].numpy() for part in means]

    return secagg.take_step(message, context, agreed, mean)


def _release(
    party: Party, how: Exchange, encode: Callable[[Any], Tensor], epoch: int = 0
) -> Means | None:
    data, y = party.data, party.data.labels(party.data.y)
    grouping = stream(party.task.experiment.seed, "split", party.client, epoch)
    noise = np.random.default_rng(
        secrets.randbits(128)
    )  # a server that knew the noise could take it off
    return release(party.client, data.x, y, how, encode, grouping, noise)


def _new_round(party: Party, asked: RecordDict, context: Context) -> int:
    """The round of a question about hidden states: the last one answered, or one after it, which
    takes its place.
    """
    round_ = _round(party, asked)
    before = context.state.get("answered")
    last = before["round"] if isinstance(before, ConfigRecord) else -1
    assert isinstance(last, int)
    if round_ < last:
        raise Refused("over")
    if round_ > last:
        for name in (f"about round {last}", f"means round {last}"):
            context.state.pop(name, None)
        context.state["answered"] = ConfigRecord({"round": round_})
    return round_


def _round(party: Party, asked: RecordDict) -> int:
    round_, rounds = int(wire.said(asked, "round", int)), party.task.experiment.rounds
    if not 0 <= round_ < rounds:
        raise Refused("round")
    return round_


def _first_epoch(digest: int, asked: RecordDict, context: Context) -> int:
    """The server's number for these data, by which they are grouped: the first that it gave, so
    that groups stay the same.
    """
    known = context.state.get("epochs")
    epochs = dict(known) if isinstance(known, ConfigRecord) else {}
    epoch = epochs.setdefault(str(digest), wire.said(asked, "epoch", int))
    assert isinstance(epoch, int)
    if not 0 <= epoch < MOST_EPOCHS:
        raise Refused("epoch")
    context.state["epochs"] = ConfigRecord(epochs)
    return epoch


def _encoder(party: Party, asked: RecordDict) -> Callable[[Any], Tensor]:
    """What means are taken of: samples in their units, or hidden states under the weights that came
    along.
    """
    layer = party.task.objective.needs.layer
    if not layer:
        return party.data.units
    head, init = party.model.head(layer), party.model.init()
    params = _on(
        party.device,
        wire.unpack(asked, "weights", {name: tuple(init[name].shape) for name in head.names}),
    )

    def encode(raw: Any) -> Tensor:
        with torch.no_grad(), arithmetic("float32"):
            return head(params, party.data.inputs(raw).to(party.device)).cpu()

    return encode


def train(party: Party, asked: RecordDict, context: Context) -> RecordDict:
    """Train from the weights that came, with draws of (seed, round, client), and send the weights
    back.
    """
    task, round_ = party.task, _round(party, asked)
    needs, training, seed = task.objective.needs, task.training, task.experiment.seed
    pool = entries = None
    if needs.means:
        version = wire.said(asked, "pool", int)
        if "pool" in asked:
            own_entries = task.exchange is not None and task.exchange.exclude_own
            context.state["pool"] = wire.pack(
                wire.read_pool(asked, _like(party), entries=own_entries)
            )
            context.state["held"] = ConfigRecord({"version": version})
        held = context.state.get("held")
        if not isinstance(held, ConfigRecord) or held.get("version") != version:
            return RecordDict({"about": party.presence.content(round=round_, lacks=version)})
        pool, entries = _pool(party, context)
    params = _on(
        party.device,
        wire.unpack(asked, "weights", {n: tuple(p.shape) for n, p in party.model.init().items()}),
    )
    plan = draw_plan(
        seed, round_, party.client, party.samples, training, needs, entries=entries,
        pad=party.data.transform.pad,
    )  # fmt: skip
    lr, known = training.rate(round_), _known(party, asked, context)
    work = Work(round_ + 1, np.zeros(1, np.int64), [plan], params, lr, pool, known)
    engine = Sequential(precision=task.experiment.engine.precision)
    runner = engine.start(party.model, task.objective, training)
    [update] = runner.run_round(Resident.on(party.device, party.data), work)
    new = {n: p[0] for n, p in update.params.items()}
    about = party.presence.content(round=round_, loss=float(update.losses[0]))
    reply = RecordDict({"about": about, "weights": wire.pack(new)})
    if needs.state and known.kept and known.shared:
        kept, moved = _of_one(known.kept), lr * training.reach(party.samples)
        after, sent = needs.state.after(kept, known.shared, params, new, moved)
        context.state["kept before"], context.state["kept"] = wire.pack(kept), wire.pack(after)
        context.state["kept since"] = ConfigRecord({"round": round_})
        reply["sent"] = wire.pack(sent)
    return reply


def _known(party: Party, asked: RecordDict, context: Context) -> Known:
    """What the objective needs to know of this client, as of the only one."""
    needs, data = party.task.objective.needs, party.data
    counts = samples = kept = shared = None
    if needs.counts:
        assert data.classes is not None
        of_class = torch.from_numpy(np.bincount(data.y, minlength=data.classes))
        counts = of_class[None].to(party.device, torch.float32)
    if needs.samples:
        samples = torch.tensor([float(party.samples)], device=party.device)
    if needs.state:
        first, like = needs.state.first(_on(party.device, party.model.init()))
        shapes = {name: tuple(t.shape) for name, t in like.items()}
        shared = _on(party.device, wire.unpack(asked, "shared", shapes))
        since = context.state.get("kept since")
        if isinstance(since, ConfigRecord):  # an update that the server did not take is undone
            taken = since["round"] == wire.said(asked, "kept", int)
            record = context.state["kept" if taken else "kept before"]
            assert isinstance(record, ArrayRecord)
            first = {n: torch.from_numpy(record[n].numpy()).to(party.device) for n in first}
        kept = {name: t[None] for name, t in first.items()}
    return Known(counts, samples, kept, shared)


def _of_one(stacked: Params) -> Params:
    return {name: t[0] for name, t in stacked.items()}


def _pool(party: Party, context: Context) -> tuple[Received, Any]:
    """The pool that this client keeps, as model inputs, and the entries that it may draw."""
    record = context.state["pool"]
    assert isinstance(record, ArrayRecord)
    x, y = (torch.from_numpy(record[name].numpy()) for name in ("x", "y"))
    entries = record["entries"].numpy() if "entries" in record else np.arange(len(x))
    if not party.task.objective.needs.layer:
        x = party.data.transform.normalise(x)
    return Received(x.to(party.device), y.to(party.device)), entries


def _like(party: Party) -> Means:
    """Something with the shape of means: one sample of this client's own, or its hidden states."""
    data, layer = party.data, party.task.objective.needs.layer
    y = data.labels(data.y[:1])
    if not layer:
        return Means(data.units(data.x[:1]), y)
    with torch.no_grad():
        return Means(
            party.model.head(layer)(
                _on(party.device, party.model.init()), data.inputs(data.x[:1]).to(party.device)
            ),
            y,
        )


def _on(device: torch.device, params: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: p.to(device) for name, p in params.items()}
