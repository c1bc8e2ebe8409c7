"""All clients of a round at once on one device: the local step under `vmap`, every client with weights of its own.

Clients are sorted by their number of steps. Those that are done leave the stack, so nobody waits for the longest; inside a
batch, padding is masked.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from fedmix.batches import PlanOnDevice, Resident
from fedmix.engines.base import Work, diverged
from fedmix.engines.compiled import compiled
from fedmix.errors import BadInput, ClientFailure, FedmixError
from fedmix.local import local_step, rest
from fedmix.models.functional import Model
from fedmix.objectives.base import Objective
from fedmix.plan import stack
from fedmix.server import Updates
from fedmix.training import Training
from fedmix.types import Batch, Params

# On a CPU, stacking clients pays while their weights stay in its caches. Measured with 15 clients of the paper's VGG (14 MB
# each): 1159 ms a step stacked, 887 ms one by one; with 10 of LeNet-5 (0.25 MB each) stacking is three times faster.
CPU_STACKS_BELOW = 8 * 2**20


class Vectorised:
    """Runs up to `chunk` clients at once, and halves that when the device's memory is short.

    Without `chunk` it takes all of them; on a CPU it takes large models one by one. `compile` turns the stacked step into
    machine code first, which takes some seconds for each width of the stack; clients that are done then stay in it, masked, until
    they are half of it.
    """

    def __init__(
        self, model: Model, objective: Objective, training: Training, *, chunk: int | None = None, compile: bool = False
    ) -> None:
        if chunk is not None and chunk < 1:
            raise BadInput(f"chunk={chunk}: at least one client must run at a time")
        weights = list(model.module.parameters())
        large = sum(w.numel() * w.element_size() for w in weights) > CPU_STACKS_BELOW
        self.chunk = 1 if chunk is None and large and weights[0].device.type == "cpu" else chunk
        self.model, self.training = model, training
        self.phases = objective.phases()
        self.partners_of_all = objective.needs.partner == "global"
        self.compile = compile
        self._step = compiled(self._stacked_step) if compile else self._stacked_step

    def run_round(self, data: Resident, work: Work) -> Iterator[Updates]:
        waiting = np.argsort([-p.steps for p in work.plans], kind="stable")
        while len(waiting):
            width = min(self.chunk or len(waiting), len(waiting))
            try:
                updates = self._update(data, work, waiting[:width])
            except torch.OutOfMemoryError as error:
                if width == 1:
                    raise FedmixError(
                        "one client does not fit into the device's memory; lower training.batch_size or use a smaller model"
                    ) from error
                self.chunk = -(-width // 2)
                continue
            yield updates
            waiting = waiting[width:]

    def _update(self, data: Resident, work: Work, chosen: np.ndarray[Any, Any]) -> Updates:
        """The updates of some of the round's clients, longest first."""
        clients, plans = work.clients[chosen], [work.plans[i] for i in chosen]
        steps = np.array([p.steps for p in plans])
        plan = data.locate(stack(plans), clients, self.partners_of_all)
        params = {n: p.expand(len(clients), *p.shape) for n, p in work.params.items()}
        velocity = rest(params, self.training)
        done: list[Params] = []
        losses = torch.zeros(len(clients), int(steps[0]), device=data.device)
        lr = torch.tensor(work.lr, dtype=next(iter(params.values())).dtype, device=data.device)
        width = len(clients)
        with torch.no_grad():
            for step in range(steps[0]):
                active = int((steps > step).sum())
                if active < width and not (self.compile and 2 * active > width):
                    width = active if not self.compile else -(-width // 2)
                    done.append({n: p[width:].clone() for n, p in params.items()})  # a view would keep the whole stack
                    params, velocity = _first(width, params), _first(width, velocity)
                batch = data.batch(plan.at(slice(0, width), step), work.pool)
                params, velocity, loss = self._step(params, velocity, work.params, batch, lr)
                losses[:active, step] = loss[:active].to(losses.dtype)
        done.append(params)
        stacked = {n: torch.cat([part[n] for part in reversed(done)]) for n in params}
        self._check(data, work, clients, plan, stacked, losses)
        per_client = losses.sum(1) / torch.from_numpy(steps).to(losses)
        return Updates(clients.tolist(), stacked, per_client)

    def _stacked_step(
        self, params: Params, velocity: Params, anchor: Params, batch: Batch, lr: Tensor
    ) -> tuple[Params, Params, Tensor]:
        def one(params: Params, velocity: Params, batch: Batch) -> tuple[Params, Params, Tensor]:
            return local_step(self.model, self.phases, self.training, params, velocity, anchor, batch, lr)

        if len(batch.x) == 1:  # nothing to stack, and the plain step is faster than its vmap
            alone = one(_only(params), _only(velocity), Batch._make(None if f is None else f[0] for f in batch))
            return _stacked(alone[0]), _stacked(alone[1]), alone[2][None]
        by_client = Batch._make(None if f is None else 0 for f in batch)
        after, speed, loss = vmap(one, in_dims=(0, 0, by_client))(params, velocity, batch)
        if self.compile:
            after, speed = _where(batch.mask.any(1), after, params), _where(batch.mask.any(1), speed, velocity)
        return after, speed, loss

    def _check(
        self,
        data: Resident,
        work: Work,
        clients: np.ndarray[Any, Any],
        plan: PlanOnDevice,
        params: Params,
        losses: Tensor,
    ) -> None:
        """Name the client and the step where numbers stopped being finite, if any did."""
        finite = torch.stack([torch.isfinite(p.reshape(len(p), -1)).all(1) for p in params.values()]).all(0)
        bad = ~(finite & torch.isfinite(losses).all(1))
        if not bad.any():
            return
        row = int(bad.nonzero()[0])
        lost = (~torch.isfinite(losses[row])).nonzero()
        step = int(lost[0]) if len(lost) else int(plan.mask[row].any(-1).sum()) - 1
        batch = data.batch(plan.at(row, step), work.pool)
        raise ClientFailure(work.round, int(clients[row]), step, diverged(batch, "the loss" if len(lost) else "the update"))


def _first(count: int, params: Params) -> Params:
    return {n: p[:count] for n, p in params.items()}


def _where(going: Tensor, after: Params, before: Params) -> Params:
    """Clients that are done keep what they had."""
    return {n: torch.where(going.view(-1, *[1] * (p.ndim - 1)), p, before[n]) for n, p in after.items()}


def _only(params: Params) -> Params:
    return {n: p[0] for n, p in params.items()}


def _stacked(params: Params) -> Params:
    return {n: p[None] for n, p in params.items()}
