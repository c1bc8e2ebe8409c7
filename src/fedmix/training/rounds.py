"""Base class of everything that trains in rounds, simulated or real."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fedmix.core.errors import BadInput, Diverged
from fedmix.core.ranks import here
from fedmix.core.rng import Noise, stream
from fedmix.core.types import Array, Params
from fedmix.core.validation import positive, whole
from fedmix.data.federated import FederatedData
from fedmix.exchange import MeanExchange, Traffic
from fedmix.kernels.precision import arithmetic
from fedmix.models.functional import Model
from fedmix.objectives.base import Objective
from fedmix.server_steps import ServerStep
from fedmix.training.aggregation import Average
from fedmix.training.coming import Coming
from fedmix.training.described import as_table, in_a_line, of_round
from fedmix.training.dpfedavg import DPFedAvg
from fedmix.training.evaluation import (
    ClientScores,
    Metric,
    ResidentTests,
    evaluate,
    evaluate_clients,
)
from fedmix.training.failures import CollapseWatch, blamed, check_step
from fedmix.training.head import Fitted, Head
from fedmix.training.history import History
from fedmix.training.known import Memory
from fedmix.training.settings import Training

HEAD_SCORE = "head_accuracy"  # of the model whose last layer was set from statistics


@dataclass(frozen=True)
class Round:
    """The report of a finished round.

    Args:
        round: Its number, from 1.
        local_loss: The clients' mean local loss.
        traffic: The bytes of this round.
        metrics: Test metrics if the round was evaluated; with a head from statistics, also
            head_accuracy and head_loss.
        notes: Further counts, such as the number of replies that a real federation rejected.
    """

    round: int
    local_loss: float
    traffic: Traffic
    metrics: dict[str, float] | None
    notes: Mapping[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        return of_round(self)


class Rounds:
    """Weights, server step, client state, exchange, bytes and test metrics from round to round.

    Subclasses write `_train_round`. It must replace what it changes, so that a failed round can be
    undone.
    """

    samples_are_here = True  # whether the clients' samples are in `data`
    compiled = False  # whether local steps are

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
        head: Head | None = None,
        updates: DPFedAvg | None = None,
    ) -> None:
        self.model, self.objective, self.training = model.to(device), objective, training
        self.data, self.exchange, self.server = data, exchange, server
        self.seed, self.device, self.needs = seed, device, objective.needs
        self.updates, self.clients = updates, clients
        self.metrics, self.callbacks = dict(metrics or {}), tuple(callbacks)
        self.tests = ResidentTests.on(device, data)
        self.params = {name: p.to(device) for name, p in self.model.init().items()}
        self.server_state = server.init(self.params)
        how = self.needs.state
        self.memory = None if how is None else Memory(how, self.params, clients)
        self.ranks = here()
        self.round, self.traffic, self.notes = 0, Traffic(), dict[str, int]()
        self._lines: list[dict[str, Any]] = []
        self.lr_scale, self.stopped = 1.0, False
        self.steered = False  # whether `lr_scale` has ever been another
        self.elsewhere = frozenset[str]()  # parts released with other settings, before `restore`
        self.head, self.last_layer, self.head_releases = head, dict[str, Tensor](), 0
        self.watch = CollapseWatch(objective, None if data.classes is None else data.held_out.y)

    def __repr__(self) -> str:
        return in_a_line(self)

    def _repr_html_(self) -> str:
        return as_table(self)

    def _train_round(self) -> tuple[Params, float, Traffic]:
        """Train one round; return the clients' average, their mean local loss, and the bytes."""
        raise NotImplementedError

    def run(self, rounds: int, *, evaluate_every: int = 1) -> Coming:
        """Return the rounds up to number `rounds`; each is trained when it is asked for.

        Iterate over them, or call `finish()` on what is returned. Call `run` again with a larger
        number to continue.

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
        return Coming(self._run(rounds, evaluate_every), self, rounds)

    def _run(self, rounds: int, evaluate_every: int) -> Iterator[Round]:
        self.watch.check()
        self.settle(rounds)
        while self.round < rounds and not self.stopped:
            positive("federation.lr_scale", self.lr_scale)
            self.steered = self.steered or self.lr_scale != 1.0
            before = vars(self) | {"exchange": copy(self.exchange), "memory": copy(self.memory)}
            try:
                mean, local_loss, traffic = self._train_round()
                self.server_state, self.params = self.server(self.server_state, self.params, mean)
                check_step(self.params, self.round + 1, self.server, self.updates)
            except Diverged as error:
                self._undo(before)
                raise blamed(error, self.server, self.updates) from error.__cause__
            except BaseException:  # a round is whole or not at all, so that it can be retried
                self._undo(before)
                raise
            self.round += 1
            self.traffic = self.traffic + traffic
            due = self.round % evaluate_every == 0 or self.round == rounds
            done = Round(self.round, local_loss, traffic, None, self.notes)
            if due:
                done = self._tested(done, last=self.round == rounds)
            self.watch.note(self.round, done.metrics)
            done = self._called_back(done)
            self._lines.append(self._line(done))
            yield done
            self.watch.check()

    def _line(self, done: Round) -> dict[str, Any]:
        sent = {"bytes_up": self.traffic.up, "bytes_down": self.traffic.down}
        metrics = done.metrics or {}
        return {"round": done.round, **metrics, "local_loss": done.local_loss, **sent, **done.notes}

    @property
    def history(self) -> History:
        """Metrics of the rounds that this object has done, as columns; bytes are totals so far."""
        return History.of(self._lines)

    def _mean(self, average: Average) -> Params:
        """Return the mean weights of a round, from the sum of all its clients' updates."""
        k = self.training.per_round(self.clients)
        return average.mean(self.model.trained, k, self._update_noise())

    def _update_noise(self) -> Noise:
        """Return what draws the noise on this round's sum of updates."""
        return stream(self.seed, "update-noise", self.round)

    def settle(self, rounds: int, compiled: bool | None = None) -> None:
        """Settle how clients train in a run of so many rounds in all, where that is left open.

        Args:
            rounds: The number of the last round.
            compiled: What was settled when the run began, for one that goes on.
        """

    def _called_back(self, done: Round) -> Round:
        """Call the callbacks; if they stop the run, make sure that the round has test metrics."""

        def call() -> tuple[float, bool]:
            for callback in self.callbacks:
                callback(done, self)
            return self.lr_scale, self.stopped

        if self.callbacks:
            self.lr_scale, self.stopped = self.ranks.from_first(call)
        if self.stopped and done.metrics is None:
            done = self._tested(done, last=True)
            self.watch.note(self.round, done.metrics)
        elif self.stopped and self.head and HEAD_SCORE not in (done.metrics or {}):
            done = self._with_head(done)
        return done

    def _tested(self, done: Round, *, last: bool) -> Round:
        """Return a round with test metrics; the last one also with those of the new head."""
        done = replace(done, metrics=self._test())
        early = self.head and self.head.since is not None and done.round >= self.head.since
        return self._with_head(done) if self.head and (last or early) else done

    def _with_head(self, done: Round) -> Round:
        """Set the last layer from the clients' statistics, and add its metrics to a round's.

        The weights that are trained stay as they are, so that training can go on.
        """
        fitted = self._fit_head()
        self.last_layer, self.head_releases = fitted.params, self.head_releases + 1
        self.traffic = self.traffic + fitted.traffic
        found = evaluate(self.model, self.headed, self.tests, None, self.ranks)
        new = {f"head_{name}": value for name, value in found.items()}
        return replace(
            done, metrics=(done.metrics or {}) | new, traffic=done.traffic + fitted.traffic
        )

    def _fit_head(self) -> Fitted:
        """Return the last layer that follows from all clients' samples."""
        raise NotImplementedError

    @property
    def headed(self) -> Params:
        """The weights, with the last layer that was set from statistics, if one was."""
        return self.params | self.last_layer

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

    def how(self) -> dict[str, str]:
        """Return how clients train, as it was settled."""
        return {}

    def versions(self) -> dict[str, str]:
        """Return versions of software, besides this process's own, that the run depends on."""
        return {}

    def took_part(self) -> tuple[int, int, int]:
        """Return the rounds so far, how many clients were chosen in each, and of how many."""
        return self.round, self.training.per_round(self.clients), self.clients

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

    def _terms(self) -> dict[str, Tensor]:
        """Return a hash of the settings of each part that has been released, for its guarantee."""
        settings = {
            "updates": (self.updates and self.updates.noise_multiplier, *self.took_part()[1:]),
            "means": self.exchange and self.exchange.how,
            "head": self.head.exchange if self.head and self.head_releases else None,
        }
        hashes = {part: hashlib.sha256(repr(how).encode()) for part, how in settings.items()}
        return {n: torch.tensor(list(hashed.digest())) for n, hashed in hashes.items()}

    def state(self) -> dict[str, Tensor]:
        """Return everything that the next rounds depend on, as tensors."""
        saved = {f"params.{n}": p.cpu() for n, p in self.params.items()}
        saved["round"] = torch.tensor(self.round)
        for name, terms in self._terms().items():
            saved[f"terms.{name}"] = torch.zeros(0) if name in self.elsewhere else terms
        saved |= {f"traffic.{n}": torch.tensor(v) for n, v in asdict(self.traffic).items()}
        saved |= {f"server.{n}": t.cpu() for n, t in self.server_state.items()}
        if self.steered or self.stopped or self.lr_scale != 1.0:
            saved["control"] = torch.tensor([self.lr_scale, self.stopped], dtype=torch.float64)
        if self.head_releases:
            saved["headed"] = torch.tensor(self.head_releases)
            saved |= {f"headed.{n}": p.cpu() for n, p in self.last_layer.items()}
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
        # in the order of a new run, in which noise is drawn; a file has another
        params, server = part("params."), part("server.")
        self.params = {n: params[n].to(self.device) for n in self.params}
        self.server_state = {n: server[n].to(self.device) for n in self.server_state}
        self.round = int(saved["round"])
        self.traffic = Traffic(**{n: int(t) for n, t in part("traffic.").items()})
        if "control" in saved:
            self.lr_scale, stopped = saved["control"].tolist()
            self.stopped, self.steered = bool(stopped), True
        if "headed" in saved:
            self.head_releases = int(saved["headed"])
            self.last_layer = {n: p.to(self.device) for n, p in part("headed.").items()}
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
        now = {n: t.tolist() for n, t in self._terms().items()} if self.round else {}
        then = {n: t.tolist() for n, t in part("terms.").items()}
        if not then and not self.updates:  # a state of a version before DP-FedAvg
            then = now
        self.elsewhere = frozenset(n for n in now if then.get(n) != now[n])


def _kinds(params: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {n: (p.shape, p.dtype) for n, p in params.items()}


def _is_count(value: Tensor | None) -> bool:
    return (
        value is not None and value.shape == () and value.dtype == torch.int64 and int(value) >= 0
    )
