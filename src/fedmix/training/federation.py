"""The round loop: exchange, choose, plan, run, average, evaluate."""

import math
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from textwrap import shorten
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fedmix.core.errors import BadInput, described, first_line
from fedmix.core.losses import Loss, cross_entropy
from fedmix.core.types import Array
from fedmix.core.validation import flag, instance, is_whole, shown, whole
from fedmix.data.federated import FederatedData, warn_of_size
from fedmix.exchange import Exchange, Guarantee, MeanExchange, Pool, Traffic, guarantee
from fedmix.kernels.precision import Precision, arithmetic, check_device
from fedmix.models.functional import Model, model_for
from fedmix.objectives.base import Objective
from fedmix.privacy.accounting import (
    DELTA,
    Level,
    Neighbours,
    check_promise,
    nonnegative,
    own_code,
    why_none,
)
from fedmix.training.batches import Received, Resident
from fedmix.training.checks import check_objective
from fedmix.training.draws import choose_clients, draw_plans
from fedmix.training.engines import Engine, Processes, Sequential, Vectorised, Work
from fedmix.training.evaluation import ClientScores, HeldOut, evaluate, evaluate_clients
from fedmix.training.failures import guessing_level, stop_if_collapsed
from fedmix.training.server import average
from fedmix.training.settings import Training

Changes = Callable[[int], Mapping[int, Sequence[int] | Array]]


@dataclass(frozen=True)
class Round:
    """What a finished round reports: its number (from 1), the clients' mean local loss, bytes, and
    test metrics if evaluated.

    `notes` are further counts of the engine's own, such as how many replies a real federation
    rejected.
    """

    round: int
    local_loss: float
    traffic: Traffic
    metrics: dict[str, float] | None
    notes: Mapping[str, int] = field(default_factory=dict)


class Rounds:
    """What every way of running has in common: weights, exchange, bytes and test metrics from round
    to round.

    `_train_round` is left to those that differ in it. What it changes it replaces, so that a round
    that fails can be undone.
    """

    def __init__(
        self,
        model: Model,
        objective: Objective,
        training: Training,
        data: FederatedData,
        exchange: MeanExchange | None,
        seed: int,
        device: torch.device,
    ) -> None:
        self.model, self.objective, self.training, self.data = (
            model.to(device),
            objective,
            training,
            data,
        )
        self.exchange, self.seed, self.device = exchange, seed, device
        self.needs = objective.needs
        self.tests = HeldOut.on(device, data)
        self.params = {name: p.to(device) for name, p in self.model.init().items()}
        self.round = 0
        self.guessing = None if data.classes is None else guessing_level(data.test_y)
        self.tested: list[tuple[int, float]] = []  # rounds and accuracies
        self.traffic = Traffic()
        self.notes: Mapping[str, int] = {}
        # whether a sample has been there twice, in one round or with two clients in several
        self._shared = False

    def _train_round(self) -> tuple[float, Traffic]:
        """Train one round; the mean local loss and the bytes that it took."""
        raise NotImplementedError

    def run(self, rounds: int, *, evaluate_every: int = 1) -> Iterator[Round]:
        """Train until round `rounds` is done, one round per item; go on later with a larger number.

        Every `evaluate_every` rounds, and after the last, the round carries test metrics. Raises
        `Collapsed` after a round by which the model has lost what it had learned.
        """
        whole("rounds", rounds, 0)
        whole("evaluate_every", evaluate_every)
        self._stop_if_collapsed()
        while self.round < rounds:
            before = vars(self) | {"exchange": copy(self.exchange)}
            try:
                local_loss, traffic = self._train_round()
            except (
                BaseException
            ):  # a round happens whole or not at all, so that it can be tried again
                self._undo(before)
                raise
            self.round += 1
            self.traffic = self.traffic + traffic
            due = self.round % evaluate_every == 0 or self.round == rounds
            metrics = self.evaluate() if due else None
            if metrics and "accuracy" in metrics:
                self.tested.append((self.round, metrics["accuracy"]))
            yield Round(self.round, local_loss, traffic, metrics, self.notes)
            self._stop_if_collapsed()

    def _stop_if_collapsed(self) -> None:
        if self.guessing is not None:
            stop_if_collapsed(self.tested, self.guessing, self.objective)

    def _undo(self, before: Mapping[str, Any]) -> None:
        """Be what it was before a round that failed."""
        vars(self).update(before)

    def _model_bytes(self, layer: int) -> int:
        return sum(self.params[n].numel() * 4 for n in self.model.tail(layer).names)

    def evaluate(self) -> dict[str, float]:
        """Test metrics of the global model as it stands."""
        return evaluate(self.model, self.params, self.tests)

    def evaluate_clients(self) -> ClientScores:
        """Scores of the global model on each client's own test samples."""
        return evaluate_clients(self.model, self.params, replace(self.tests, data=self.data))

    def holdings(self) -> dict[str, Any]:
        """What is known of the clients' data: the number of classes, everyone's samples, and how
        many of each class.
        """
        raise NotImplementedError

    def _encode(self, raw: Array) -> Tensor:
        """Samples as they are averaged: in units, or as hidden states under the present weights."""
        if not self.needs.layer:
            return self.data.units(raw)
        with torch.no_grad(), arithmetic("float32"):
            return self.model.head(self.needs.layer)(
                self.params, self.data.inputs(raw).to(self.device)
            ).cpu()

    def _sizes(self) -> Array:
        """How many samples each client has, as far as is known."""
        return self.data.clients.sizes

    def _nonnegative(self) -> bool:
        """Whether nothing of what is averaged is ever negative, as far as is known."""
        return nonnegative(self.data)

    def guarantee(
        self, delta: float = DELTA, *, neighbours: Neighbours = "replace", level: Level = "sample"
    ) -> Guarantee:
        """The differential privacy of the means released so far (of the first release, before it).

        Weights are not covered.
        """
        check_promise(delta, neighbours, level)
        sent = int(self.exchange.sent.max()) if self.exchange else 0
        reason = self._why_none()
        if reason or self.exchange is None:
            return Guarantee(math.inf, delta, math.inf, level, neighbours, sent, reason)
        how = self.exchange.how
        return guarantee(
            how, self.exchange.smallest or how.smallest_group(self._sizes()) or 1, delta,
            releases=max(1, sent), neighbours=neighbours, level=level,
            nonnegative=self._nonnegative(),
        )  # fmt: skip

    def _why_none(self) -> str:
        if self.needs.partner == "global":
            return "raw samples of all clients are shared"
        if self.exchange is None or self.exchange.how.source != "pool":
            return "no means are exchanged, and weights carry no guarantee"
        if self.needs.layer:
            return "hidden states are made by weights that were trained on the samples themselves"
        if reason := own_code(self.data) or why_none(self.exchange.how):
            return reason
        return (
            "some samples are there twice, with one client or with two, or went from one to another"
            if self._shared
            else ""
        )

    def state(self) -> dict[str, Tensor]:
        """All that the next rounds depend on, as tensors: weights, round, bytes so far, and the
        exchange's state.
        """
        saved = {f"params.{n}": p.cpu() for n, p in self.params.items()}
        saved["round"] = torch.tensor(self.round)
        saved |= {f"traffic.{n}": torch.tensor(v) for n, v in asdict(self.traffic).items()}
        if self.exchange:
            saved |= {f"exchange.{n}": t for n, t in self.exchange.state().items()}
        return saved

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Go on from a state: the following rounds give the same weights, bit for bit, as if the
        run had never stopped.
        """

        def part(prefix: str) -> dict[str, Tensor]:
            return {n.removeprefix(prefix): t for n, t in saved.items() if n.startswith(prefix)}

        def kinds(params: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
            return {n: (p.shape, p.dtype) for n, p in params.items()}

        if kinds(part("params.")) != kinds(self.params):
            raise BadInput(
                "this state belongs to another model: its parameters have other names, shapes or "
                "types"
            )
        if bool(part("exchange.")) != (self.exchange is not None):
            raise BadInput(
                "this state belongs to another objective: one of the two uses means and the other "
                "does not"
            )
        if self.round:
            raise BadInput("restore a state into a new Federation, before its first round")
        counts = {"round": saved.get("round"), **part("traffic.")}
        if counts.keys() != {"round", *vars(self.traffic)} or not all(
            _is_count(t) for t in counts.values()
        ):
            raise BadInput(
                "this state is damaged: it lacks a number of rounds or bytes; start anew"
            )
        self.params = {n: p.to(self.device) for n, p in part("params.").items()}
        self.round = int(saved["round"])
        self.traffic = Traffic(**{n: int(t) for n, t in part("traffic.").items()})
        if self.exchange:
            held = part("exchange.")
            if "x" in held and held["x"].shape[1:] != self._encode(self.data.x[:1]).shape[1:]:
                raise BadInput(
                    "this state is damaged: its means do not have the shape of these samples; "
                    "start anew"
                )
            self.exchange.restore(held, self.data)


class Federation(Rounds):
    """Trains `module` on `data` with `objective`, round by round, the same way on every engine.

    A run is a pure function of its arguments: the same seed gives the same weights.
    `changes(round)` may give some clients other rows before a round; it must be a function of the
    round alone, so that a run can be resumed. `chunk` and `compile` are for the vectorised engine:
    how many clients at once, and whether their step is compiled first (as it is on a GPU).
    `precision` is how a GPU multiplies while it trains: "tf32" (as it does by default), "float32"
    or "bf16". With `processes` above 1 the clients of a round are divided among so many processes
    of one thread each, on a CPU.

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
        objective: Objective,
        training: Training,
        *,
        exchange: Exchange | None = None,
        engine: Literal["vectorised", "sequential"] = "vectorised",
        device: str | torch.device = "cpu",
        seed: int = 0,
        loss: Loss | None = None,
        changes: Changes | None = None,
        chunk: int | None = None,
        compile: bool | None = None,
        precision: Precision = "tf32",
        processes: int = 1,
    ) -> None:
        whole("seed", seed, 0)
        if compile is not None:
            flag("compile", compile)
        if changes is not None and not callable(changes):
            raise BadInput(
                f"`changes` is {described(changes)}; give a function of the round, or leave it out"
            )
        _check(data, objective, training, exchange, loss)
        model = model_for(data, module, loss)
        means = (
            MeanExchange(exchange or Exchange(), seed, len(data.clients))
            if objective.needs.means
            else None
        )
        for phase in objective.phases():
            model.tail(phase.layer)
        check_objective(objective, model, data)
        if not any(
            isinstance(part, nn.Embedding) for part in module.modules()
        ):  # which takes codes of any size
            warn_of_size(data)
        super().__init__(model, objective, training, data, means, seed, device_named(device))
        check_device(precision, self.device)
        self.changes = changes
        self._holder = np.full(len(data.x), -1)  # the last client that had each sample
        self._note_holders()
        self.runs_on = {
            "name": engine, "device": str(device), "chunk": chunk, "compile": compile,
            "precision": precision, "processes": processes,
        }  # fmt: skip
        self.resident = Resident.on(self.device, data)
        build: Callable[[], Engine]
        if str(engine) == "vectorised":
            compile = self.device.type == "cuda" if compile is None else compile
            build = partial(
                Vectorised,
                self.model,
                objective,
                training,
                chunk=chunk,
                compile=compile,
                precision=precision,
            )
        elif str(engine) == "sequential":
            build = partial(Sequential, self.model, objective, training, precision=precision)
        else:
            raise BadInput(
                f"engine {shown(engine)} is unknown; choose 'vectorised' or 'sequential'"
            )
        self.engine: Engine = build()
        if not is_whole(processes) or (processes > 1 and self.device.type != "cpu"):
            right = (
                "leave it at 1 on a GPU"
                if is_whole(processes)
                else "it must be at least 1, and a whole number"
            )
            raise BadInput(
                f"engine.processes={shown(processes)} with device {str(self.device)!r}: {right}"
            )
        if processes > 1:
            self.engine = Processes(build, processes)
        self._latest: tuple[Pool, Received] | None = None

    def _train_round(self) -> tuple[float, Traffic]:
        changed = self._take_changes(self.round)
        if changed and self.exchange:
            self.exchange.changed(changed)
        chosen = choose_clients(
            self.seed, self.round, len(self.data.clients), self.training.clients_per_round
        )
        pool, traffic = self._exchange_means(chosen)
        clients, samples = chosen.tolist(), self.data.clients.sizes[chosen].tolist()
        plans = draw_plans(
            self.seed, self.round, clients, samples, self.training, self.needs,
            entries=[self.exchange.entries_for(k) for k in clients] if self.exchange else None,
            everyone=len(self.data.clients.flat), pad=self.data.transform.pad,
            width=int(self.data.clients.sizes.max()),
        )  # fmt: skip
        work = Work(
            self.round + 1, chosen, plans, self.params, self.training.rate(self.round), pool
        )
        updates = self.engine.run_round(self.resident, work)
        try:
            self.params, loss = average(updates, dict(zip(clients, samples, strict=True)))
        finally:
            if isinstance(
                updates, Generator
            ):  # one that was left in the middle must not go on later
                updates.close()
        each = self._model_bytes(0) * len(chosen)
        return loss, traffic + Traffic(models_up=each, models_down=each)

    def _take_changes(self, round_: int) -> Collection[int]:
        """Give clients the rows that they have from this round on; the clients whose data that
        changed.
        """
        changed = self.changes(round_) if self.changes else {}
        if changed:
            self.data = self.data.with_clients(changed)
            self.resident = replace(self.resident, data=self.data)
            self._note_holders()
        return changed

    def _note_holders(self) -> None:
        """Take note of whose samples these are now, where that matters: a sample's ε would add up
        over all who ever had it.
        """
        if self._why_none():
            return
        rows, owner = self.data.clients.flat, self.data.clients.owner
        before, holder = self._holder[rows], self._holder.copy()
        holder[rows] = owner
        moved = ((before >= 0) & (before != owner)).any()
        self._holder, self._shared = (
            holder,
            self._shared or bool(moved) or int(np.bincount(rows).max()) > 1,
        )

    def _exchange_means(self, chosen: Array) -> tuple[Received | None, Traffic]:
        """Have the means exchanged that are due, and give the pool as the model will see it."""
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

    def _received(self, pool: Pool | None) -> Received:
        """The pool as model inputs (or hidden states), made once for each version of it."""
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
        """Go on from a state: the following rounds give the same weights, bit for bit, as if the
        run had never stopped.
        """
        super().restore(saved)
        for past in range(self.round if self.changes else 0):
            self._take_changes(past)


def _is_count(value: Tensor | None) -> bool:
    return (
        value is not None and value.shape == () and value.dtype == torch.int64 and int(value) >= 0
    )


def device_named(name: str | torch.device) -> torch.device:
    """A device that holds values, by its name."""
    instance("device", name, (str, torch.device), "give its name, such as 'cpu'")
    try:
        probe = torch.zeros(1, device=name)
        probe.item()  # a device that holds no values, such as "meta", fails here
        if probe.is_cuda:
            torch.cuda.set_device(probe.device)  # kernels and graphs go to the current one
        return probe.device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = shorten(first_line(error).partition(". ")[0], 100, placeholder=" ...")
        raise BadInput(
            f"device {str(name)!r} cannot be used ({reason}); choose 'cpu', or 'cuda' where there "
            "is a GPU"
        ) from error


def _check(
    data: FederatedData,
    objective: Objective,
    training: Training,
    exchange: Exchange | None,
    loss: Loss | None,
) -> None:
    """Refuse combinations that cannot work, before anything runs."""
    for what, value, kind, how in (
        ("data", data, FederatedData, "make a FederatedData of it, by fedmix.data.from_arrays"),
        ("objective", objective, Objective, "give an Objective, such as FedMix(lam=0.1)"),
        ("training", training, Training, "give a Training, such as Training(clients_per_round=5)"),
        (
            "exchange",
            Exchange() if exchange is None else exchange,
            Exchange,
            "give an Exchange, such as Exchange(m=5)",
        ),
        (
            "loss",
            cross_entropy if loss is None else loss,
            Loss,
            "give a fedmix.core.losses.Loss, or leave it out",
        ),
    ):
        instance(what, value, kind, how)
    needs = objective.needs
    training.check_clients(len(data.clients), data.name)
    if needs.partner == "global" and data.private:
        raise BadInput(
            f"GlobalMix needs raw samples of other clients and {data.name} is private; FedMix and "
            "NaiveMix need means only"
        )
    if needs.means:
        (exchange or Exchange()).check(data.clients.sizes)
    if exchange is not None and needs.means is None:
        raise BadInput(
            "an exchange was given, but this objective uses no means; leave it out, or use FedMix "
            "or NaiveMix"
        )
    if exchange is not None and exchange.secure:
        raise BadInput(
            "exchange.secure hides means from the server of a federation on Flower, and here is "
            "none; leave it out"
        )
    if exchange is not None and exchange.split == "class" and data.classes is None:
        raise BadInput(
            f"exchange.split='class' needs classes, and {data.name} is a regression; use "
            "split='random'"
        )
    if (
        needs.means
        and needs.layer
        and exchange is not None
        and (exchange.source == "noise" or exchange.wait)
    ):
        raise BadInput(
            "exchange.source='noise' and exchange.wait do not apply to means of hidden states, "
            "which are sent every round"
        )
