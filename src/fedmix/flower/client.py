"""The ClientApp: it loads the client's samples, decides what leaves the client, and trains.

Flower may start a new process for every message.
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

MOST_EPOCHS = 1 << 32  # an epoch numbers the versions of a client's data
log = logging.getLogger("fedmix.flower")


def client_app(task: Task) -> ClientApp:
    """Return the ClientApp of a task; it answers `query.join`, `query.means` and `train`.

    A node's configuration gives the number of its client (`partition-id`), and may give a `policy`
    file and a `device`. If an answer fails, the error stays in the node's log, and the server gets
    one of `fedmix.flower.wire.REASONS`.
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
            except Exception as error:  # its text and its type may hold data: they stay here
                _note(error)
                content = _refusal(error)
            return Message(content, reply_to=message)

        return handle

    app.query("join")(answer(join))
    app.query("means")(answer(send_means))
    app.train()(answer(train))
    return app


def _note(error: Exception) -> None:
    """Write an error to the node's own log."""
    if isinstance(error, FedmixError):
        log.error("%s", error)
    else:  # from a load function or a module of the user
        log.error("the client's app failed", exc_info=error)


def _refusal(error: Exception) -> RecordDict:
    """Return the reply that tells the server why the client refuses."""
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
    """Log any error in the block, and raise Refused with this reason instead."""
    try:
        yield
    except Exception as error:
        _note(error)
        raise Refused(reason) from error


@dataclass(frozen=True)
class Party:
    """One client: its number, its samples, the model, and what its node's configuration sets."""

    task: Task
    client: int
    data: FederatedData
    model: Model
    device: torch.device
    policy: Policy

    @staticmethod
    def of(task: Task, context: Context) -> "Party":
        """Load the client that a node's configuration names.

        Raises:
            Refused: `partition-id` is missing, or the policy or the data cannot be loaded.
            BadInput: The device cannot be used, or the model does not accept the data.
        """
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
        """Number of samples, n_k."""
        return int(self.data.clients.sizes[0])

    @property
    def presence(self) -> wire.Presence:
        """What the client tells the server about itself."""
        return wire.Presence(self.client, self.samples, self._digest())

    def _digest(self) -> int:
        """Hash of the samples, 63 bits: it changes when they do.

        It also depends on the experiment and the client, so that nobody can see that two clients,
        or two experiments, have the same samples.
        """
        where = np.frombuffer(f"{self.task.experiment.identity} {self.client}".encode(), np.uint8)
        return int.from_bytes(federated.digest(where, self.data.x, self.data.y)[:8], "big") >> 1 | 1


def join(party: Party, asked: RecordDict, context: Context) -> RecordDict:  # noqa: ARG001
    """Answer a roll call with the client's presence."""
    return RecordDict({"about": party.presence.content()})


def send_means(party: Party, asked: RecordDict, context: Context) -> RecordDict:
    """Release means as the experiment says, or as a stricter policy does; never as a message says.

    For the same data a run gets the same answer, whatever it asks later: a server could compute
    samples from means over other groups or under other noise. Means of hidden states are new in
    every round, with one answer per round.

    Raises:
        Refused: The experiment exchanges no means or only sums, or the round or epoch is not valid.
        Withheld: The policy forbids the release.
        Rejected: The message is not as agreed.
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
            # the server expects shares, since it asked for no clipping
            means = means._replace(y=to_shares(means.y))
        m = how.group_size(party.client, party.samples) if means else 0
        context.state[answer] = wire.pack(means._asdict() if means else {})
        # the server does not learn how much noise the policy adds
        context.state[about] = presence.content(m=m, noise=float(agreed.noise))
    return RecordDict({"about": context.state[about], "means": context.state[answer]})


def add_mean(party: Party, message: Message, context: Context) -> RecordDict:
    """Answer a step of secure aggregation, in which this client adds its masked mean to a sum.

    Raises:
        Refused: The experiment has no secure sums, the client is below the cut-off, or the step is
            not as agreed.
        Withheld: The policy forbids the release.
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
    # a server that knew the noise could subtract it
    noise = np.random.default_rng(secrets.randbits(128))
    return release(party.client, data.x, y, how, encode, grouping, noise)


def _new_round(party: Party, asked: RecordDict, context: Context) -> int:
    """Check and return the round of a question about hidden states.

    A round after the last one answered takes its place, and the old answer is deleted. Raises
    Refused if the round is before the last one answered.
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
    """Return the first epoch that the server gave for these data, so that groups stay the same."""
    known = context.state.get("epochs")
    epochs = dict(known) if isinstance(known, ConfigRecord) else {}
    epoch = epochs.setdefault(str(digest), wire.said(asked, "epoch", int))
    assert isinstance(epoch, int)
    if not 0 <= epoch < MOST_EPOCHS:
        raise Refused("epoch")
    context.state["epochs"] = ConfigRecord(epochs)
    return epoch


def _encoder(party: Party, asked: RecordDict) -> Callable[[Any], Tensor]:
    """Return the function of which means are taken.

    It gives samples in their units, or hidden states under the weights in the message.
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
    """Train from the weights in the message, and reply with the new weights.

    Random draws depend on (seed, round, client). A client that does not hold the current pool
    replies that it lacks it. Raises Refused or Rejected if the message is not as agreed.
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
    """Return what the objective needs to know of this client, with a client axis of length one."""
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
    """Return the pool that this client holds, as model inputs, and the entries that it may draw."""
    record = context.state["pool"]
    assert isinstance(record, ArrayRecord)
    x, y = (torch.from_numpy(record[name].numpy()) for name in ("x", "y"))
    entries = record["entries"].numpy() if "entries" in record else np.arange(len(x))
    if not party.task.objective.needs.layer:
        x = party.data.transform.normalise(x)
    return Received(x.to(party.device), y.to(party.device)), entries


def _like(party: Party) -> Means:
    """Return an example with the shape of means: a sample of this client, or its hidden states."""
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
