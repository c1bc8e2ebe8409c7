"""Base class of everything that trains in rounds, simulated or real."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fedmix.core.errors import BadInput
from fedmix.core.ranks import here
from fedmix.core.types import Array, Params
from fedmix.core.validation import positive, whole
from fedmix.data.federated import FederatedData
from fedmix.exchange import MeanExchange, Traffic
from fedmix.kernels.precision import arithmetic
from fedmix.models.functional import Model
from fedmix.objectives.base import Objective
from fedmix.server_steps import ServerStep
from fedmix.training.evaluation import (
    ClientScores,
    Metric,
    ResidentTests,
    evaluate,
    evaluate_clients,
)
from fedmix.training.failures import CollapseWatch
from fedmix.training.known import Memory
from fedmix.training.settings import Training


@dataclass(frozen=True)
class Round:
    """The report of a finished round.

    Args:
        round: Its number, from 1.
        local_loss: The clients' mean local loss.
        traffic: The bytes of this round.
        metrics: Test metrics if the round was evaluated.
        notes: Further counts, such as the number of replies that a real federation rejected.
    """

    round: int
    local_loss: float
    traffic: Traffic
    metrics: dict[str, float] | None
    notes: Mapping[str, int] = field(default_factory=dict)


class Rounds:
    """Weights, server step, client state, exchange, bytes and test metrics from round to round.

    Subclasses write `_train_round`. It must replace what it changes, so that a failed round can be
    undone.
    """

    samples_are_here = True  # whether the clients' samples are in `data`

    def __init__(
        self,
        model: Model,
        objective: Objective,
        training: Training,
        data: FederatedData,
        exchange: MeanExchange | None,
        server: ServerStep,
        seed: int,
        device: torch.device,
        clients: int,
        metrics: Mapping[str, Metric] | None = None,
        callbacks: Sequence[Callable[[Round, Any], None]] = (),
    ) -> None:
        self.model, self.objective, self.training = model.to(device), objective, training
        self.data, self.exchange, self.server = data, exchange, server
        self.seed, self.device, self.needs = seed, device, objective.needs
        self.metrics, self.callbacks = dict(metrics or {}), tuple(callbacks)
        self.tests = ResidentTests.on(device, data)
        self.params = {name: p.to(device) for name, p in self.model.init().items()}
        self.server_state = server.init(self.params)
        how = self.needs.state
        self.memory = None if how is None else Memory(how, self.params, clients)
        self.ranks = here()
        self.round, self.traffic, self.notes = 0, Traffic(), dict[str, int]()
        self.lr_scale, self.stopped = 1.0, False
        self.watch = CollapseWatch(objective, None if data.classes is None else data.held_out.y)

    def _train_round(self) -> tuple[Params, float, Traffic]:
        """Train one round; return the clients' average, their mean local loss, and the bytes."""
        raise NotImplementedError

    def run(self, rounds: int, *, evaluate_every: int = 1) -> Iterator[Round]:
        """Train until round `rounds` is done, and yield each round.

        Call it again with a larger number to continue.

        Args:
            rounds: The number of the last round.
            evaluate_every: The number of rounds between tests. The last round is always tested.

        Raises:
            BadInput: An argument is not a whole number, or too small, or `lr_scale` is no rate.
            Collapsed: The model has lost what it had learned.
            ClientFailure: A client's local update failed; nothing of its round is kept.
        """
        whole("rounds", rounds, 0)
        whole("evaluate_every", evaluate_every)
        self.watch.check()
        while self.round < rounds and not self.stopped:
            positive("federation.lr_scale", self.lr_scale)
            before = vars(self) | {"exchange": copy(self.exchange), "memory": copy(self.memory)}
            try:
                mean, local_loss, traffic = self._train_round()
                self.server_state, self.params = self.server(self.server_state, self.params, mean)
            except BaseException:  # a round is whole or not at all, so that it can be retried
                self._undo(before)
                raise
            self.round += 1
            self.traffic = self.traffic + traffic
            due = self.round % evaluate_every == 0 or self.round == rounds
            metrics = self._test() if due else None
            self.watch.note(self.round, metrics)
            yield self._called_back(Round(self.round, local_loss, traffic, metrics, self.notes))
            self.watch.check()

    def _called_back(self, done: Round) -> Round:
        """Call the callbacks; if they stop the run, make sure that the round has test metrics."""

        def call() -> tuple[float, bool]:
            for callback in self.callbacks:
                callback(done, self)
            return self.lr_scale, self.stopped

        if self.callbacks:
            self.lr_scale, self.stopped = self.ranks.from_first(call)
        if self.stopped and done.metrics is None:
            done = replace(done, metrics=self._test())
            self.watch.note(self.round, done.metrics)
        return done

    def stop(self) -> None:
        """Make the round that was just done the last one; for callbacks."""
        self.stopped = True

    def _undo(self, before: Mapping[str, Any]) -> None:
        """Return to the attributes before a round that failed."""
        vars(self).update(before)

    def _model_bytes(self, layer: int) -> int:
        return sum(self.params[n].numel() * 4 for n in self.model.tail(layer).names)

    def _state_bytes(self) -> int:
        """Bytes that are sent each way with the weights, if clients keep a state."""
        return sum(t.numel() * 4 for t in self.memory.shared.values()) if self.memory else 0

    def evaluate(self) -> dict[str, float]:
        """Return test metrics of the current global model."""
        return evaluate(self.model, self.params, self.tests, self.metrics)

    def _test(self) -> dict[str, float]:
        """Return the same as `evaluate`; each rank tests a part, so all must call it."""
        return evaluate(self.model, self.params, self.tests, self.metrics, self.ranks)

    def evaluate_clients(self) -> ClientScores:
        """Return scores of the global model on each client's own test samples.

        Raises:
            BadInput: The test samples do not belong to clients.
        """
        return evaluate_clients(self.model, self.params, replace(self.tests, data=self.data))

    def holdings(self) -> dict[str, Any]:
        """Return what is known of the clients' data: number of classes, sizes, counts by class."""
        raise NotImplementedError

    def versions(self) -> dict[str, str]:
        """Return versions of software, besides this process's own, that the run depends on."""
        return {}

    def sizes(self) -> Array:
        """Return the number of samples of each client, as far as it is known."""
        return self.data.clients.sizes

    def _encode(self, raw: Array) -> Tensor:
        """Return samples in the form that is averaged: in units, or as current hidden states."""
        if not self.needs.layer:
            return self.data.units(raw)
        with torch.no_grad(), arithmetic("float32"):
            head, x = self.model.head(self.needs.layer), self.data.inputs(raw).to(self.device)
            return head(self.params, x).cpu()

    def state(self) -> dict[str, Tensor]:
        """Return everything that the next rounds depend on, as tensors."""
        saved = {f"params.{n}": p.cpu() for n, p in self.params.items()}
        saved["round"] = torch.tensor(self.round)
        saved |= {f"traffic.{n}": torch.tensor(v) for n, v in asdict(self.traffic).items()}
        saved |= {f"server.{n}": t.cpu() for n, t in self.server_state.items()}
        if self.stopped or self.lr_scale != 1.0:
            saved["control"] = torch.tensor([self.lr_scale, self.stopped], dtype=torch.float64)
        for name, part in (("exchange", self.exchange), ("memory", self.memory)):
            saved |= {f"{name}.{n}": t for n, t in part.state().items()} if part else {}
        return saved

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Continue from a state: later rounds give the same weights as a run that never stopped.

        Raises:
            BadInput: The state is damaged, or of another model, objective or server step.
        """

        def part(prefix: str) -> dict[str, Tensor]:
            return {n.removeprefix(prefix): t for n, t in saved.items() if n.startswith(prefix)}

        if _kinds(part("params.")) != _kinds(self.params):
            raise BadInput(
                "this state belongs to another model: its parameters have other names, shapes or "
                "types"
            )
        if bool(part("exchange.")) != (self.exchange is not None):
            raise BadInput(
                "this state belongs to another objective: one of the two uses means and the other "
                "does not"
            )
        if bool(part("memory.")) != (self.memory is not None):
            raise BadInput(
                "this state belongs to another objective: the clients of one of the two keep "
                "something, and those of the other do not"
            )
        if _kinds(part("server.")) != _kinds(self.server_state):
            raise BadInput("this state belongs to another server step; start anew")
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
        self.server_state = {n: t.to(self.device) for n, t in part("server.").items()}
        self.round = int(saved["round"])
        self.traffic = Traffic(**{n: int(t) for n, t in part("traffic.").items()})
        if "control" in saved:
            self.lr_scale, stopped = saved["control"].tolist()
            self.stopped = bool(stopped)
        if self.memory:
            self.memory.restore(part("memory."))
        if self.exchange:
            held = part("exchange.")
            if "x" in held and held["x"].shape[1:] != self._encode(self.data.x[:1]).shape[1:]:
                raise BadInput(
                    "this state is damaged: its means do not have the shape of these samples; "
                    "start anew"
                )
            self.exchange.restore(held, self.data)


def _kinds(params: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {n: (p.shape, p.dtype) for n, p in params.items()}


def _is_count(value: Tensor | None) -> bool:
    return (
        value is not None and value.shape == () and value.dtype == torch.int64 and int(value) >= 0
    )
