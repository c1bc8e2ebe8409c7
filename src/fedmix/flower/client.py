"""The ClientApp of fedmix: it shares means as any app may, and trains as the experiment says."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from fedmix.core.devices import device_named
from fedmix.core.types import Params
from fedmix.data.federated import FederatedData
from fedmix.flower import wire
from fedmix.flower.owner import Owner
from fedmix.flower.sharing import Sharing, held, received_means, valid_round
from fedmix.flower.task import Task
from fedmix.kernels.precision import arithmetic
from fedmix.models.functional import Model
from fedmix.training.batches import Received, Resident
from fedmix.training.draws import draw_plan
from fedmix.training.engines import Sequential, Work
from fedmix.training.known import Known


def client_app(task: Task) -> ClientApp:
    """Return the ClientApp of a task; it answers `train`, and what `share_means` answers.

    A node's configuration gives the number of its client (`partition-id`), and may give a `policy`
    file and a `device`. If an answer fails, the error stays in the node's log, and the server gets
    one of `fedmix.flower.refusals.REASONS`.
    """

    def load(context: Context) -> FederatedData:
        config = context.node_config
        return task.load(int(str(config["partition-id"])), {**context.run_config, **config})

    def encoder(owner: Owner, asked: RecordDict | None) -> Callable[[Any], Tensor]:
        return _encoder(Party.of(task, owner), asked)

    sharing = Sharing(
        load, task.exchange, experiment=task.experiment.identity, seed=task.experiment.seed,
        hidden=encoder if task.objective.needs.layer else None, rounds=task.experiment.rounds,
        check=lambda owner: Party.of(task, owner),
    )  # fmt: skip
    app = ClientApp()
    sharing.answer_queries(app)
    app.train()(
        sharing.guarded(
            lambda owner, message, context: train(Party.of(task, owner), message.content, context)
        )
    )
    return app


@dataclass(frozen=True)
class Party:
    """One client as it trains: its number, its samples, the model, and its device."""

    task: Task
    client: int
    data: FederatedData
    model: Model
    device: torch.device

    @staticmethod
    def of(task: Task, owner: Owner) -> "Party":
        """Return the client of an owner; raise BadInput if device or model cannot be used."""
        device = device_named(str(owner.config.get("device", "cpu")))
        return Party(task, owner.client, owner.data, task.model(owner.data).to(device), device)

    @property
    def samples(self) -> int:
        """Number of samples, n_k."""
        return int(self.data.clients.sizes[0])


def _encoder(party: Party, asked: RecordDict | None) -> Callable[[Any], Tensor]:
    """Return the encoder of hidden states under the weights in a message, or under initial ones."""
    init = party.model.init()
    head = party.model.head(party.task.objective.needs.layer)
    if asked is not None:
        init = wire.unpack(asked, "weights", {name: tuple(init[name].shape) for name in head.names})
    params = _on(party.device, init)

    def encode(raw: Any) -> Tensor:
        with torch.no_grad(), arithmetic("float32"):
            return head(params, party.data.inputs(raw).to(party.device)).cpu()

    return encode


def train(party: Party, asked: RecordDict, context: Context) -> RecordDict:
    """Train from the weights in the message, and reply with the new weights.

    Random draws depend on (seed, round, client). A client that does not hold the current pool
    replies with nothing. Raises Refused or Rejected if the message is not as agreed.
    """
    task, round_ = party.task, valid_round(asked, party.task.experiment.rounds)
    needs, training, seed = task.objective.needs, task.training, task.experiment.seed
    pool = entries = None
    if needs.means:
        means = received_means(context)
        if means is None or held(context) != wire.said(asked, "pool", int):
            return RecordDict()
        x = means.x if needs.layer else party.data.transform.normalise(means.x)
        pool = Received(x.to(party.device), means.y.to(party.device))
        entries = np.arange(len(x))
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
    new = _of_one(update.params)
    about = ConfigRecord({"round": round_, "loss": float(update.losses[0])})
    reply = RecordDict(
        {"about": about, "weights": wire.pack(_bounded(task, update.params, params))}
    )
    if needs.state and known.kept and known.shared:
        kept, moved = _of_one(known.kept), lr * training.reach(party.samples)
        after, sent = needs.state.after(kept, known.shared, params, new, moved)
        context.state["kept before"], context.state["kept"] = wire.pack(kept), wire.pack(after)
        context.state["kept since"] = ConfigRecord({"round": round_})
        reply["sent"] = wire.pack(sent)
    return reply


def _bounded(task: Task, trained: Params, before: Params) -> Params:
    """Return the weights that leave a client: those of its clipped update, with DP-FedAvg."""
    if task.updates is None:
        return _of_one(trained)
    moved = _of_one(task.updates.clipped(trained, before))
    return {name: before[name] + by for name, by in moved.items()}


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


def _on(device: torch.device, params: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: p.to(device) for name, p in params.items()}
