"""One local step, by hand."""

import pytest
import torch
from torch import nn

from fedmix import Hidden, NaiveMix, Training, losses
from fedmix.core.types import Batch
from fedmix.models import Model
from fedmix.training.local_step import local_step, rest


def test_the_loss_of_a_step_is_its_first_phases() -> None:
    """f(x) = 3·2x at x = 1, y = 5, λ = ½, and a hidden mean 4 with label 1: z = 3·(½·2 + ½·4) = 9.

    The first phase's loss is ½·9² − 9·(½·5 + ½·1) = 13.5. Its step, at a mixed state of 3,
    takes 0.1·(9 − 3)·3 = 1.8 from the decoder's 3. The second phase begins at 1.2·2 = 2.4, with
    ½·2.4² − 2.4·5 = −9.12, and its slopes are (2.4 − 5)·2 and (2.4 − 5)·1.2.
    """
    layers = [nn.Linear(1, 1, bias=False) for _ in range(2)]
    model = Model(nn.Sequential(*layers), losses.squared_error)
    params = {"0.weight": torch.tensor([[2.0]]), "1.weight": torch.tensor([[3.0]])}
    one = torch.ones(1, 1)
    batch = Batch(one, 5 * one, torch.ones(1), torch.tensor(0), mean_x=4 * one, mean_y=one)
    phases = Hidden(NaiveMix(0.5), 1).phases()
    begin = rest(params, Training(1))
    now, velocity, loss = local_step(model, phases, Training(1), params, begin, params, batch, 0.1)
    assert float(loss) == pytest.approx(13.5)
    assert float(now["1.weight"]) == pytest.approx(1.2 + 0.1 * 2.6 * 2)
    assert float(now["0.weight"]) == pytest.approx(2 + 0.1 * 2.6 * 1.2)
    assert begin == velocity == {}
