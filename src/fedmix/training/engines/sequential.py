"""The reference engine: one client after another, one step after another, nothing padded; slow,
plain, easy to debug.
"""

from collections.abc import Iterator

import torch

from fedmix.core.errors import ClientFailure, Diverged, FedmixError
from fedmix.core.types import Batch, each_field
from fedmix.kernels.precision import Precision, arithmetic, called
from fedmix.models.functional import Model
from fedmix.objectives.base import Objective
from fedmix.training.batches import Resident
from fedmix.training.engines.base import Work, describe, diverged
from fedmix.training.local_step import local_step, rest
from fedmix.training.server import Updates
from fedmix.training.settings import Training


class Sequential:
    """Runs every client by itself.

    A failure names the round, the client and the step, and says what the input looked like.
    """

    def __init__(
        self,
        model: Model,
        objective: Objective,
        training: Training,
        *,
        precision: Precision = "float32",
    ) -> None:
        self.model, self.training, self.precision = model, training, called(precision)
        self.objective, self.phases = objective, objective.phases()
        self.partners_of_all = objective.needs.partner == "global"

    def run_round(self, data: Resident, work: Work) -> Iterator[Updates]:
        for position in range(len(work.clients)):
            yield self._update(data, work, position)

    def _update(self, data: Resident, work: Work, position: int) -> Updates:
        client, plan = int(work.clients[position]), work.plans[position]
        plan = plan.cut(int(plan.mask.sum(1).max()))  # padding comes last, and is not even gathered
        located = data.put(data.locate(plan, client, self.partners_of_all))
        params, velocity = work.params, rest(work.params, self.training)
        losses = []
        for step in range(plan.steps):
            batch = _unpadded(data.batch(located.at(step), work.pool))
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
            except Exception as error:  # of an objective or a model, which can be anyone's
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


def _unpadded(batch: Batch) -> Batch:
    """Only the real samples, as a client with no neighbours to line up with would hold them."""
    real = batch.mask.bool()
    return each_field(
        lambda t: t[real] if t.shape[:1] == real.shape else t, batch
    )  # what the whole batch shares stays
