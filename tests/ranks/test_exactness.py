"""Several ranks give what one process gives: all algorithms, client state and server state too."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.ranks.federations import cases, trained
from tests.ranks.start import ended, start


@pytest.fixture(scope="module")
def alone() -> dict[str, torch.Tensor]:
    return {f"{name}/{key}": t for name, made in cases() for key, t in trained(made).items()}


@pytest.mark.parametrize("count", [pytest.param(2, marks=pytest.mark.faults), 3])
def test_any_number_of_ranks_trains_the_same(
    count: int, alone: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    """Clients one by one in float32: to the bit, with all losses and metrics. Vectorised in
    float64, whose sums are not exact: to 1e-12, and losses, which are float32, to 1e-6. With three
    ranks, one of them trains two of the four clients, and two train one.
    """
    file = tmp_path / "states.safetensors"
    for code, _, err in ended(start(count, ["-m", "tests.ranks.federations", file])):
        assert code == 0, err
    found = load_file(file)
    assert found.keys() == alone.keys()
    for key, tensor in alone.items():
        if "one by one" in key or not tensor.is_floating_point():
            assert torch.equal(tensor, found[key]), key
        else:
            within = 1e-6 if key.endswith("told") else 1e-12
            assert torch.allclose(tensor, found[key], rtol=0, atol=within), key
