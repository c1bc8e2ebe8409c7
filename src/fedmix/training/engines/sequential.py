"""The reference engine, which runs one client after another: slow, plain, easy to debug."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from fedmix.core.errors import ClientFailure, Diverged, FedmixError
from fedmix.kernels.precision import Precision, arithmetic
from fedmix.models.functional import Model
from fedmix.objectives.base import Objective
from fedmix.training.aggregation import Updates
from fedmix.training.batches import Resident
from fedmix.training.engines.base import Engine, Runner, Work, describe, diverged
from fedmix.training.local_step import local_step, rest
from fedmix.training.settings import Training


@dataclass(frozen=True, kw_only=True)
class Sequential(Engine):
    """Runs one client after another, without padding: slow, plain, easy to debug.

    An error names the round, the client and the step, and describes the input.
    """

    name = "sequential"

    def start(self, model: Model, objective: Objective, training: Training) -> Runner:
        return SequentialRunner(model, objective, training, self.precision)


class SequentialRunner:
    """Runs every client by itself."""

    def __init__(
        self, model: Model, objective: Objective, training: Training, precision: Precision
    ) -> None:
        self.model, self.training, self.precision = model, training, precision
        self.objective, self.phases = objective, objective.phases()
        self.partners_of_all = objective.needs.partner == "global"

    def run_round(self, data: Resident, work: Work) -> Iterator[Updates]:
        for position in range(len(work.clients)):
            yield self._update(data, work, position)

    def _update(self, data: Resident, work: Work, position: int) -> Updates:
        client, plan = int(work.clients[position]), work.plans[position]
        plan = plan.cut(int(plan.mask.sum(1).max()))  # padding comes last; do not gather it
        located = data.put(data.locate(plan, client, self.partners_of_all))
        params, velocity = work.params, rest(work.params, self.training)
        known, losses = work.known.of(position), []
        for step in range(plan.steps):
            batch = known.into(data.batch(located.at(step), work.pool))
            batch = batch.only(batch.mask.bool())  # the real samples
            try:
                with arithmetic(self.precision):
                    params, velocity, loss = local_step(
                        self.model,
                        self.phases,
                        self.training,
                        params,
                        velocity,
                        work.params,
                        batch,
                        work.lr,
                    )
            except FedmixError:
                raise
            except Exception as error:  # objectives and models may be users' code
                reason = f"{type(error).__name__}: {error}; its input was {describe(batch)}"
                raise ClientFailure(work.round, client, step, reason) from error
            if not torch.isfinite(loss) or not all(
                torch.isfinite(p).all() for p in params.values()
            ):
                what = "the loss" if not torch.isfinite(loss) else "the update"
                raise Diverged(work.round, client, step, diverged(batch, what, self.objective))
            losses.append(loss)
        return Updates(
            [client], {n: p[None] for n, p in params.items()}, torch.stack(losses).mean()[None]
        )
