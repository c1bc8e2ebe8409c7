"""From draws to batches, by hand: whose rows are gathered, and how each is cropped."""

from typing import Any

import numpy as np
import torch

from fedmix.data import FederatedData, HeldOut, Ragged
from fedmix.data.transforms import Images
from fedmix.training.batches import Received, Resident
from fedmix.training.draws import ClientPlan

CPU = torch.device("cpu")
CLIENTS = Ragged.of([[5, 2], [7, 0, 3]])  # rows 1, 4 and 6 are nobody's


def pictures(pad: int = 0) -> FederatedData:
    """Eight pictures of 2 by 3; picture i holds the bytes 10·i + 1 to 10·i + 6."""
    x = (10 * np.arange(8)[:, None] + np.arange(1, 7)).reshape(8, 2, 3, 1).astype(np.uint8)
    y = np.arange(8) % 2
    return FederatedData(x, y, CLIENTS, HeldOut(x, y), 2, Images((0.0,), (1 / 255,), pad=pad))


def two_samples(**more: np.ndarray[Any, Any]) -> ClientPlan:
    """One step with both samples of a batch of two."""
    return ClientPlan(np.array([[1, 0]]), np.ones((1, 2), bool), np.zeros(1, np.int64), **more)


def test_positions_become_rows() -> None:
    """Client 1 holds rows 7, 0 and 3; all clients' samples, in order, are rows 5, 2, 7, 0 and 3."""
    resident, plan = Resident.on(CPU, pictures()), two_samples(partners=np.array([[0, 2]]))
    own, others = (resident.locate(plan, 1, partners_of_all=of_all) for of_all in (False, True))
    assert own.rows.tolist() == others.rows.tolist() == [[0, 7]]
    assert own.partners is not None
    assert others.partners is not None
    assert own.partners.tolist() == [[7, 3]]
    assert others.partners.tolist() == [[5, 7]]
    assert resident.locate(plan, 0, partners_of_all=False).rows.tolist() == [[2, 5]]


def test_samples_and_partners_are_cropped_by_their_own_draws() -> None:
    """With a margin of 1, (0, 2) moves a picture down and left; (1, 1) leaves it in place."""
    resident = Resident.on(CPU, pictures(pad=1))
    crops, partner_crops = np.array([[[0, 2, 0], [1, 1, 0]]]), np.array([[[1, 1, 1], [2, 1, 0]]])
    plan = two_samples(partners=np.array([[2, 4]]), crops=crops, partner_crops=partner_crops)
    step = resident.put(resident.locate(plan, 1, partners_of_all=True)).at(0)
    batch = resident.batch(step, None)
    assert torch.equal(batch.mask, torch.ones(2))
    assert batch.mask.dtype == torch.float32
    assert batch.mean_x is None
    assert resident.batch(step, Received(batch.x, batch.y)).mean_x is None
    expected = [[[0.0, 0, 0], [2, 3, 0]], [[71, 72, 73], [74, 75, 76]]]
    torch.testing.assert_close(batch.x[:, 0], torch.tensor(expected))
    assert batch.partner_x is not None
    expected = [[[73.0, 72, 71], [76, 75, 74]], [[34, 35, 36], [0, 0, 0]]]
    torch.testing.assert_close(batch.partner_x[:, 0], torch.tensor(expected))
