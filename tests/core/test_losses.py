"""Losses and scores of a sample with several targets, by hand."""

import math

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


def test_cross_entropy_and_accuracy_of_one_sample() -> None:
    """Logits (0, ln 3) are probabilities (¼, ¾); the larger label decides what is right."""
    outputs = torch.tensor([0.0, math.log(3)], dtype=torch.float64)
    value = losses.cross_entropy.value(outputs, torch.tensor([0.25, 0.75]))
    assert float(value) == pytest.approx(-0.25 * math.log(0.25) - 0.75 * math.log(0.75))
    for labels, right in (([0.25, 0.75], 1.0), ([0.75, 0.25], 0.0)):
        score = losses.cross_entropy.score(outputs, torch.tensor(labels))
        assert (float(score), score.dtype) == (right, torch.float64)
