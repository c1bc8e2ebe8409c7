"""Losses and scores of a sample with several targets, by hand."""

import pytest
import torch

from fedmix import losses


def test_squared_errors_of_several_targets() -> None:
    """Errors 1, 2 and 3: ½·(1 + 4 + 9) = 7 is shown as the loss, and (1 + 4 + 9) / 3 as mse."""
    outputs, targets = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.0, 4.0, 0.0])
    assert float(losses.squared_error.report(outputs, targets)) == 7.0
    assert float(losses.squared_error.score(outputs, targets)) == pytest.approx(14 / 3)
    # What is minimised leaves ½·4² out: ½·(1 + 4 + 9) − 2·4.
    assert float(losses.squared_error.value(outputs, targets)) == -1.0
