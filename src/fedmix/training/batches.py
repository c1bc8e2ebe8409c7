"""Batches from a plan's draws: gathers samples, partners and means on the device."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedmix.core.types import Batch, each_field
from fedmix.data.federated import FederatedData
from fedmix.data.numbers import to_tensor
from fedmix.data.transforms import crop_and_flip
from fedmix.training.draws import ClientPlan


class Received(NamedTuple):
    """The pool on the device: means as model inputs (or hidden states), and their labels."""

    x: Tensor
    y: Tensor


class PlanOnDevice(NamedTuple):
    """A plan as tensors; `rows` and `partners` are rows of the data's arrays."""

    rows: Tensor
    mask: Tensor
    keys: Tensor
    means: Tensor | None
    partners: Tensor | None
    lam: Tensor | None
    crops: Tensor | None
    partner_crops: Tensor | None

    def at(self, *index: int | slice) -> "PlanOnDevice":
        """Return the draws at an index of steps, or of steps and slots."""
        return each_field(lambda draws: draws[index], self)


@dataclass(frozen=True)
class Resident:
    """A federation's training data on one device, in its stored form (images stay uint8)."""

    data: FederatedData
    x: Tensor
    y: Tensor

    @staticmethod
    def on(device: torch.device, data: FederatedData) -> "Resident":
        """Copy the training data to a device."""
        x, y = (to_tensor(array).to(device) for array in (data.x, data.y))
        return Resident(data, x, y)

    @property
    def device(self) -> torch.device:
        """The device that holds the data."""
        return self.x.device

    def locate(self, plan: ClientPlan, client: int, partners_of_all: bool) -> ClientPlan:
        """Return a client's plan with its samples and partners as rows of the data's arrays.

        Args:
            plan: The client's plan.
            client: The client's number.
            partners_of_all: Whether partners are positions in the data of all clients, and not in
                its own.
        """
        index = self.data.clients
        start = index.offsets[client]
        partners = plan.partners
        if partners is not None:
            partners = index.flat[partners if partners_of_all else start + partners]
        return plan._replace(rows=index.flat[start + plan.rows], partners=partners)

    def put(self, plan: ClientPlan) -> PlanOnDevice:
        """Copy a plan that `locate` returned to the device."""
        return PlanOnDevice._make(
            None if f is None else torch.from_numpy(f).to(self.device) for f in plan
        )

    def inputs(self, rows: Tensor, crops: Tensor | None) -> Tensor:
        """Return the samples at `rows` (any shape) as model inputs.

        Args:
            rows: Rows of the data's arrays.
            crops: How to crop and flip each sample; None leaves them as they are.
        """
        transform = self.data.transform
        x = transform.units(self.x[rows.reshape(-1)])
        if crops is not None:
            x = crop_and_flip(x, crops.reshape(-1, 3), transform.pad)
        x = transform.normalise(x)
        return x.reshape(*rows.shape, *x.shape[1:])

    def batch(self, plan: PlanOnDevice, pool: Received | None) -> Batch:
        """Return the batch of one step: of one client, or of several with a leading axis.

        Args:
            plan: The draws of this step.
            pool: The received means, if the objective uses them.
        """
        mean_x = mean_y = partner_x = partner_y = None
        if plan.means is not None and pool is not None:
            mean_x, mean_y = pool.x[plan.means], pool.y[plan.means]
        if plan.partners is not None:
            partner_x = self.inputs(plan.partners, plan.partner_crops)
            partner_y = self.data.targets(self.y[plan.partners])
        return Batch(
            x=self.inputs(plan.rows, plan.crops),
            y=self.data.targets(self.y[plan.rows]),
            mask=plan.mask.to(torch.float32),
            key=plan.keys,
            mean_x=mean_x,
            mean_y=mean_y,
            partner_x=partner_x,
            partner_y=partner_y,
            lam=plan.lam,
        )
