"""Simulated federations: the samples of all clients are in this process."""

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedmix.core.errors import BadInput
from fedmix.core.losses import Loss
from fedmix.core.ranks import here
from fedmix.core.rng import stream
from fedmix.core.sharing import sharing
from fedmix.core.threads import warn_of_spinning
from fedmix.core.types import Array, Params
from fedmix.core.validation import shown, whole
from fedmix.data.federated import FederatedData, digest
from fedmix.exchange import Exchange, MeanExchange, Pool, Traffic
from fedmix.objectives.base import Objective, as_objective
from fedmix.server_steps import FedAvg, ServerStep
from fedmix.training.aggregation import Average, Sum
from fedmix.training.batches import Received, Resident
from fedmix.training.checks import check_all
from fedmix.training.dpfedavg import DPFedAvg
from fedmix.training.draws import choose_clients, draw_plans
from fedmix.training.engines import Engine, Vectorised, Work
from fedmix.training.engines.threads import threads_for
from fedmix.training.evaluation import Metric, ResidentTests
from fedmix.training.head import Fitted, Head, fit
from fedmix.training.known import Known
from fedmix.training.one_copy import one_copy
from fedmix.training.rounds import Round, Rounds
from fedmix.training.settings import Training

SOME = 100  # training samples that ranks compare

Changes = Callable[[int], Mapping[int, Sequence[int] | Array]]
"""`changes(round)` returns new rows of some clients before a round, counted from 0."""

Choose = Callable[[int, Array, int, np.random.Generator], Sequence[int] | Array]
"""`choose(round, sizes, count, rng)` returns the clients of a round, counted from 0."""

Callback = Callable[[Round, "Federation"], None]
"""`callback(done, federation)` is called after each round, before the next."""


class Federation(Rounds):
    """Trains `module` on `data` with `objective`, round by round, the same way on every engine.

    A run is a pure function of its arguments: the same seed gives the same weights. If a launcher
    such as torchrun started several processes with the same program, they divide the clients of
    each round; callbacks run in the first process only.

    Args:
        module: The model; it is copied and never changed.
        data: Samples by client, and test samples.
        objective: What clients minimise: an Objective, or a function of its arguments.
        training: Clients per round, local steps and learning rate.
        exchange: How means are made, for objectives that use them.
        engine: How and where clients run: `Vectorised(...)` or `Sequential(...)`. Whether local
            steps are compiled on a CPU is chosen by `run`, from the number of rounds, unless the
            engine says it. Python starts no processes: use torchrun, or `fedmix run`.
        server: What the server does with the clients' average, such as `FedAdam()`.
        seed: The seed of all draws.
        loss: A loss to use instead of the one that goes with the data.
        changes: Gives some clients other rows before a round. Like `choose`, it must depend on its
            arguments only, so that a run can be resumed.
        choose: Chooses the clients of a round, instead of a uniform choice. It draws from the
            generator that it gets.
        metrics: Further test metrics by name: functions of the model's outputs and the targets of
            all test samples that return a number, or numbers by name.
        callbacks: Called with each finished round and this federation. A callback may read
            `params`, set `lr_scale`, or call `stop()`.
        updates: Clips the clients' updates and adds noise to their sum; see `DPFedAvg`.
        head: How the last layer is set from statistics after the last round; `headed` are the
            weights with it, and `params` stay as they were trained.

    Raises:
        BadInput: These arguments do not work together.

    >>> from fedmix import FedMix, Training, data, models
    >>> training = Training(clients_per_round=5)
    >>> federation = Federation(models.mlp(64, 10), data.digits(), FedMix(lam=0.1), training)
    Traceback (most recent call last):
    fedmix.core.errors.BadInput: the model does not take inputs of shape (2, 1, 8, 8): ...
    >>> federation = Federation(models.digits_cnn(), data.digits(), FedMix(lam=0.1), training)
    >>> [r.round for r in federation.run(2)]
    [1, 2]
    """

    def __init__(
        self,
        module: nn.Module,
        data: FederatedData,
        objective: Objective | Callable[..., Tensor],
        training: Training,
        *,
        exchange: Exchange | None = None,
        engine: Engine | None = None,
        server: ServerStep | None = None,
        seed: int = 0,
        loss: Loss | None = None,
        changes: Changes | None = None,
        choose: Choose | None = None,
        metrics: Mapping[str, Metric] | None = None,
        callbacks: Sequence[Callback] = (),
        updates: DPFedAvg | None = None,
        head: Head | None = None,
    ) -> None:
        here()  # meets the other ranks, if any; warnings are the first one's from now on
        whole("seed", seed, 0)
        objective = as_objective(objective)
        engine = Vectorised() if engine is None else engine
        server = FedAvg() if server is None else server
        model, device = check_all(
            module, data, objective, training, exchange=exchange, engine=engine, server=server,
            loss=loss, changes=changes, choose=choose, metrics=metrics, callbacks=callbacks,
            updates=updates, head=head,
        )  # fmt: skip
        clients, means = len(data.clients), None
        if objective.needs.means:
            means = MeanExchange(exchange or Exchange(), seed, clients)
        super().__init__(
            model, objective, training, data, means, server, seed, device, clients,
            metrics=metrics, callbacks=callbacks, head=head, updates=updates,
        )  # fmt: skip
        self.engine, self.changes, self.choose = engine, changes, choose
        self.first_data = data
        self.resident = Resident.on(device, data)
        self.runner = engine.start(self.model, objective, training)
        self.compiled, self._settled = engine.compiles(self.model), False
        if device.type == "cpu":
            warn_of_spinning(torch.get_num_threads())
        self.threads = self._threads() if device.type == "cpu" else None
        self._latest: tuple[Pool, Received] | None = None
        self._compared: FederatedData | None = None
        self._shared = False  # whether ranks of one machine hold the data once

    def settle(self, rounds: int, compiled: bool | None = None) -> None:
        """See `Rounds`. What is compiled once stays so, also if fewer rounds are asked for."""
        if self._settled:
            return
        self._settled = compiled is not None
        if compiled is None:
            steps = self.training.steps_of_all(self.data.clients.sizes, rounds)
            compiled = self.compiled or self.engine.compiles(self.model, steps)
        engine = self.engine.settled(compiled)
        if engine.compiles(self.model) != self.compiled:
            self.compiled = compiled
            self.runner = engine.start(self.model, self.objective, self.training)

    def _threads(self) -> int | None:
        sample = self.data.inputs(self.data.x[:1])
        batch = min(self.training.batch_size, int(self.data.clients.sizes.max()))
        return threads_for(self.model, sample, batch)

    def how(self) -> dict[str, str]:
        threads = {} if self.threads is None else {"threads": str(self.threads)}
        compiled = "yes" if self.compiled else "no"
        return {"compiled": compiled, "processes": str(self.ranks.count), **threads}

    def _train_round(self) -> tuple[Params, float, Traffic]:
        self._compare_ranks()
        changed = self._take_changes(self.round)
        if changed and self.exchange:
            self.exchange.changed(changed)
        chosen = self._chosen()
        pool, traffic = self._exchange_means(chosen)
        sizes = self.data.clients.sizes[chosen].tolist()
        samples = dict(zip(chosen.tolist(), sizes, strict=True))
        share = self.ranks.share([self.training.steps(n) for n in sizes])
        average = Average(self.params, samples, self.updates)
        sent = Sum(self.memory.shared if self.memory else None)
        with self.ranks.agreeing() as meeting, sharing(self.threads):
            kept = self._train_clients(chosen[share], samples, pool, average, sent)
            meeting.mine = average.losses, kept if self.ranks.count == 1 else _on_cpu(kept)
        average.losses = {k: loss for part, _ in meeting.all for k, loss in part.items()}
        self.ranks.add([*average.sum.tensors.values(), *sent.tensors.values()])
        if self.memory:
            self.memory.take([kept for _, kept in meeting.all], sent.tensors)
        each = (self._model_bytes(0) + self._state_bytes()) * len(chosen)
        return (
            self._mean(average),
            average.loss,
            traffic + Traffic(models_up=each, models_down=each),
        )

    def _train_clients(
        self,
        clients: Array,
        samples: Mapping[int, int],
        pool: Received | None,
        average: Average,
        sent: Sum,
    ) -> dict[int, Params]:
        """Train some of the round's clients; return what they keep.

        Their updates are added to the average, and what they send besides to the sum.
        """
        everyone, sizes = clients.tolist(), [samples[k] for k in clients.tolist()]
        kept = dict[int, Params]()
        if not everyone:
            return kept
        plans = draw_plans(
            self.seed, self.round, everyone, sizes, self.training, self.needs,
            entries=[self.exchange.entries_for(k) for k in everyone] if self.exchange else None,
            everyone=len(self.data.clients.flat), pad=self.data.transform.pad,
            width=int(self.data.clients.sizes.max()),
        )  # fmt: skip
        lr = self.training.rate(self.round) * self.lr_scale
        moved = {k: lr * self.training.reach(samples[k]) for k in everyone}
        work = Work(self.round + 1, clients, plans, self.params, lr, pool, self._known(everyone))
        updates = self.runner.run_round(self.resident, work)
        try:
            for chunk in updates:
                average.add(chunk)
                if self.memory:
                    keeps, sends = self.memory.after(chunk, self.params, moved)
                    kept |= keeps
                    sent.add(sends, [1] * len(chunk.clients))
        finally:
            if isinstance(updates, Generator):  # after an error, it must not run later
                updates.close()
        return kept

    def _compare_ranks(self) -> None:
        """Meet the other ranks before a round; they must be about to train the same.

        Raises:
            BadInput: Their weights or data differ, as those of models that are made without seed.
        """
        if self.ranks.count == 1:
            return
        sums = torch.stack([p.double().sum() for p in self.params.values()])
        mine = {"rounds": self.round, "weights": sums.cpu().numpy().tobytes()}
        if self._compared is not self.data:
            rows, self._compared = self.data.clients, self.data
            mine["data"] = digest(self.data.y, rows.flat, rows.offsets, self.data.some(SOME))
        self.ranks.compare(mine)
        if not self._shared and self.device.type == "cpu":
            self.first_data = one_copy(self.first_data, self.ranks)
            self.data = self._compared = replace(self.first_data, clients=self.data.clients)
            self.resident = Resident.on(self.device, self.data)
            self.tests = ResidentTests.on(self.device, self.data)
            self._shared = True

    def _chosen(self) -> Array:
        """Return the clients of this round."""
        clients = len(self.data.clients)
        count = self.training.per_round(clients)
        if self.choose is None:
            return choose_clients(self.seed, self.round, clients, count)
        rng = stream(self.seed, "clients", self.round)
        given = self.choose(self.round, self.data.clients.sizes, count, rng)
        try:
            chosen = np.asarray(given)
        except ValueError:  # lists of several lengths
            chosen = np.zeros((0, 0))
        if (
            chosen.ndim != 1
            or chosen.dtype.kind not in "iu"
            or not 0 < len(np.unique(chosen)) == len(chosen)
            or not 0 <= chosen.min() <= chosen.max() < clients
        ):
            raise BadInput(
                f"round {self.round + 1}: `choose` gave {shown(given)}; give different clients, "
                f"at least one, by their numbers 0..{clients - 1}"
            )
        return chosen.astype(np.int64)

    def _known(self, clients: list[int]) -> Known:
        """Return what the objective needs to know about these clients."""
        needs, like = self.needs, next(iter(self.params.values()))
        counts = samples = kept = shared = None
        if needs.counts:
            assert self.data.classes is not None
            labels = [self.data.y[self.data.clients[k]] for k in clients]
            by_class = [np.bincount(y, minlength=self.data.classes) for y in labels]
            counts = torch.from_numpy(np.stack(by_class)).to(like)
        if needs.samples:
            samples = torch.from_numpy(self.data.clients.sizes[clients]).to(like)
        if self.memory:
            kept, shared = self.memory.of(clients), self.memory.shared
        return Known(counts, samples, kept, shared)

    def _take_changes(self, round_: int) -> Collection[int]:
        """Give clients their rows from this round on; return the clients whose data changed."""
        changed = self.changes(round_) if self.changes else {}
        if changed:
            self.data = self.data.with_clients(changed)
            self.resident = replace(self.resident, data=self.data)
        return changed

    def data_over_time(self) -> Iterator[FederatedData]:
        """Yield the data at the start, and after each change until now."""
        data = self.first_data
        yield data
        for round_ in range(self.round if self.changes else 0):
            assert self.changes is not None
            if changed := self.changes(round_):
                data = data.with_clients(changed)
                yield data

    def _exchange_means(self, chosen: Array) -> tuple[Received | None, Traffic]:
        """Exchange the means that are due; return the pool for the model, and the bytes."""
        if self.exchange is None:
            return None, Traffic()
        layer = self.needs.layer
        traffic = self.exchange.refresh(self.data, self._encode, every_round=layer > 0)
        traffic = traffic + self.exchange.deliver(chosen.tolist())
        if layer and self.exchange.how.source == "pool":
            others = len(self.data.clients) - len(chosen)
            traffic = traffic + Traffic(
                models_down=(self._model_bytes(0) - self._model_bytes(layer)) * others
            )
        return self._received(self.exchange.pool), traffic

    def _fit_head(self) -> Fitted:
        assert self.head is not None
        return fit(self.head, self.model, self.params, self.resident, self.seed, self.round)

    def _received(self, pool: Pool | None) -> Received:
        """Return the pool as model inputs (or hidden states), computed once per version."""
        assert pool is not None
        if self._latest is None or self._latest[0] is not pool:
            x = pool.x if self.needs.layer else self.data.transform.normalise(pool.x)
            dtype = next(iter(self.params.values())).dtype
            self._latest = pool, Received(x.to(self.device, dtype), pool.y.to(self.device, dtype))
        return self._latest[1]

    def holdings(self) -> dict[str, Any]:
        counts = self.data.class_counts()
        return {
            "classes": self.data.classes,
            "sizes": self.data.clients.sizes.tolist(),
            "counts": [] if counts is None else counts.tolist(),
        }

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Continue from a state: later rounds give the same weights as a run that never stopped.

        Raises:
            BadInput: The state is damaged, or of another model, objective or server step.
        """
        super().restore(saved)
        for past in range(self.round if self.changes else 0):
            self._take_changes(past)


def _on_cpu(kept: Mapping[int, Params]) -> dict[int, Params]:
    return {k: {name: t.cpu() for name, t in own.items()} for k, own in kept.items()}
