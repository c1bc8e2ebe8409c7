"""The client's side: it loads its own samples, decides what leaves it, and trains. Flower may start a process per message."""

import json
import logging
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from fedmix.batches import Received, Resident
from fedmix.data import federated
from fedmix.data.federated import FederatedData
from fedmix.engines import Sequential, Work
from fedmix.errors import BadInput, ClientFailure, FedmixError
from fedmix.exchange import Exchange, Means, release
from fedmix.exchange.pool import to_shares
from fedmix.federation import device_named
from fedmix.flower import secure, wire
from fedmix.flower.policy import Policy
from fedmix.flower.task import Task
from fedmix.kernels.precision import arithmetic
from fedmix.models.functional import Model
from fedmix.plan import draw_plan
from fedmix.rng import stream

MOST_EPOCHS = 1 << 32  # of a client's data
log = logging.getLogger("fedmix.flower")


def client_app(task: Task) -> ClientApp:
    """The ClientApp of a task: it answers `query.join`, `query.means` and `train`.

    A node's configuration names its client (`partition-id`), and may name a `policy` file and a `device`.
    """
    app = ClientApp()

    def answer(act: Callable[[Party, RecordDict, Context], RecordDict]) -> Callable[[Message, Context], Message]:
        def handle(message: Message, context: Context) -> Message:
            try:
                party = Party.of(task, context)
                asked = message.content
                content = add_mean(party, message, context) if secure.asks(asked) else act(party, asked, context)
            except ClientFailure as failure:  # whose sentence describes samples
                log.error("%s", failure)
                content = wire.refusal(f"its local update failed at step {failure.step}; its own log says why")
            except FedmixError as error:
                log.error("%s", error)
                content = wire.refusal(str(error))
            except Exception as error:  # whatever a load function or a module of the user's raises; it may quote data
                log.exception("the client's app failed")
                content = wire.refusal(f"its app failed ({type(error).__name__}); its own log says why")
            return Message(content, reply_to=message)

        return handle

    app.query("join")(answer(join))
    app.query("means")(answer(send_means))
    app.train()(answer(train))
    return app


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
            raise BadInput(f"the node's partition-id is {client!r}; give it its client's number: --node-config 'partition-id=0'")
        policy = Policy.load(Path(str(config["policy"]))) if "policy" in config else Policy()
        data = task.load(client, {**context.run_config, **config})
        if len(data.clients) != 1:
            raise BadInput(f"the load function gave client {client} the data of {len(data.clients)}; use fedmix.data.alone")
        device = device_named(str(config.get("device", "cpu")))
        return Party(task, client, data, task.model(data).to(device), device, policy)

    @property
    def samples(self) -> int:
        return int(self.data.clients.sizes[0])

    @property
    def presence(self) -> wire.Presence:
        return wire.Presence(self.client, self.samples, digest(self.data))


def digest(data: FederatedData) -> int:
    """63 bits that change when the samples do."""
    return int.from_bytes(federated.digest(data.x, data.y)[:8], "big") >> 1 | 1


def join(party: Party, asked: RecordDict, context: Context) -> RecordDict:  # noqa: ARG001 - as every answer
    """Say who this is."""
    return RecordDict({"about": party.presence.content()})


def send_means(party: Party, asked: RecordDict, context: Context) -> RecordDict:
    """Let means out: as the app's experiment says, or as the policy demands, and never as a message says.

    A run gets one answer for the same data, whatever it asks later: from means over other groups, or under other noise, a server
    could work out samples. Means of hidden states are new in every round, with one answer a round.
    """
    agreed = party.task.exchange
    if agreed is None:
        raise BadInput("this objective uses no means, so none are let out")
    if agreed.secure:
        raise BadInput("means are let out in sums only, for exchange.secure is set")
    how = party.policy.applied(agreed, party.client, party.samples)
    presence = party.presence
    if party.task.objective.needs.layer:
        question = f"round {_new_round(party, asked, context)}"
    else:
        question = json.dumps([presence.digest, asdict(party.policy)])
    about, answer = f"about {question}", f"means {question}"
    if about not in context.state:
        means = _release(party, how, _encoder(party, asked), _first_epoch(presence.digest, asked, context))
        if means and party.data.classes is not None and agreed.clip is None and how.clip is not None:
            means = means._replace(y=to_shares(means.y))  # the server expects shares, since it asked for no clipping
        m = how.group_size(party.client, party.samples) if means else 0
        context.state[answer] = wire.pack(means._asdict() if means else {})
        context.state[about] = presence.content(m=m, noise=float(how.noise))
    return RecordDict({"about": context.state[about], "means": context.state[answer]})


def add_mean(party: Party, message: Message, context: Context) -> RecordDict:
    """Take a step towards a sum over clients, to which this one adds its mean, hidden from everybody."""
    agreed = party.task.exchange
    if agreed is None or not agreed.secure:
        raise BadInput("a sum was asked for, and exchange.secure is not set")
    how = party.policy.applied(agreed, party.client, party.samples)
    if party.samples < how.cutoff:
        raise BadInput("it is below the cut-off and adds nothing to a sum")

    def mean() -> list[Any]:
        means = _release(party, how, party.data.units)
        assert means is not None
        return [part[0].numpy() for part in means]

    return secure.take_step(message, context, agreed, mean)


def _release(party: Party, how: Exchange, encode: Callable[[Any], Tensor], epoch: int = 0) -> Means | None:
    data, y = party.data, party.data.labels(party.data.y)
    grouping = stream(party.task.experiment.seed, "split", party.client, epoch)
    noise = np.random.default_rng(secrets.randbits(128))  # a server that knew the noise could take it off
    return release(party.client, data.x, y, how, encode, grouping, noise)


def _new_round(party: Party, asked: RecordDict, context: Context) -> int:
    """The round of a question about hidden states: the last one answered, or one after it, which takes its place."""
    round_ = _round(party, asked)
    before = context.state.get("answered")
    last = before["round"] if isinstance(before, ConfigRecord) else -1
    assert isinstance(last, int)
    if round_ < last:
        raise BadInput(f"means were asked for round {round_}, after those of round {last} were let out")
    if round_ > last:
        for name in (f"about round {last}", f"means round {last}"):
            context.state.pop(name, None)
        context.state["answered"] = ConfigRecord({"round": round_})
    return round_


def _round(party: Party, asked: RecordDict) -> int:
    round_, rounds = int(wire.said(asked, "round", int)), party.task.experiment.rounds
    if not 0 <= round_ < rounds:
        raise BadInput(f"it was asked for round {round_}, and there are rounds 0..{rounds - 1}")
    return round_


def _first_epoch(digest: int, asked: RecordDict, context: Context) -> int:
    """The server's number for these data, by which they are grouped: the first that it gave, so that groups stay the same."""
    known = context.state.get("epochs")
    epochs = dict(known) if isinstance(known, ConfigRecord) else {}
    epoch = epochs.setdefault(str(digest), wire.said(asked, "epoch", int))
    assert isinstance(epoch, int)
    if not 0 <= epoch < MOST_EPOCHS:
        raise BadInput(f"means were asked for epoch {epoch} of the data, which is no count")
    context.state["epochs"] = ConfigRecord(epochs)
    return epoch


def _encoder(party: Party, asked: RecordDict) -> Callable[[Any], Tensor]:
    """What means are taken of: samples in their units, or hidden states under the weights that came along."""
    layer = party.task.objective.needs.layer
    if not layer:
        return party.data.units
    head, init = party.model.head(layer), party.model.init()
    params = _on(party.device, wire.unpack(asked, "weights", {name: tuple(init[name].shape) for name in head.names}))

    def encode(raw: Any) -> Tensor:
        with torch.no_grad(), arithmetic("float32"):
            return head(params, party.data.inputs(raw).to(party.device)).cpu()

    return encode


def train(party: Party, asked: RecordDict, context: Context) -> RecordDict:
    """Train from the weights that came, with draws of (seed, round, client), and send the weights back."""
    task, round_ = party.task, _round(party, asked)
    needs, training, seed = task.objective.needs, task.training, task.experiment.seed
    pool = entries = None
    if needs.means:
        version = wire.said(asked, "pool", int)
        if "pool" in asked:
            own_entries = task.exchange is not None and task.exchange.exclude_own
            context.state["pool"] = wire.pack(wire.read_pool(asked, _like(party), entries=own_entries))
            context.state["held"] = ConfigRecord({"version": version})
        held = context.state.get("held")
        if not isinstance(held, ConfigRecord) or held.get("version") != version:
            return RecordDict({"about": party.presence.content(round=round_, lacks=version)})
        pool, entries = _pool(party, context)
    params = _on(party.device, wire.unpack(asked, "weights", {n: tuple(p.shape) for n, p in party.model.init().items()}))
    plan = draw_plan(
        seed, round_, party.client, party.samples, training, needs, entries=entries, pad=party.data.transform.pad
    )  # fmt: skip
    work = Work(round_ + 1, np.zeros(1, np.int64), [plan], params, training.rate(round_), pool)
    engine = Sequential(party.model, task.objective, training, precision=task.experiment.engine.precision)
    [update] = engine.run_round(Resident.on(party.device, party.data), work)
    about = party.presence.content(round=round_, loss=float(update.losses[0]))
    return RecordDict({"about": about, "weights": wire.pack({n: p[0] for n, p in update.params.items()})})


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
        return Means(party.model.head(layer)(_on(party.device, party.model.init()), data.inputs(data.x[:1]).to(party.device)), y)


def _on(device: torch.device, params: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: p.to(device) for name, p in params.items()}
