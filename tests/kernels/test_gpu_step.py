"""What inductor makes of the local step for a GPU, interpreted, does what the plain step does."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from fedmix import FedMix, Objective, Supervised
from fedmix.kernels.precision import Precision
from tests.kernels import gpu_step
from tests.kernels.interpreter import Interpreter, interpreter

CASES: list[tuple[str, Objective, Precision]] = [
    # λ is part of a gradient that goes into a product, and differs by step
    ("lenet", FedMix(alpha=1.0, per="sample", expand="logits"), "float32"),
    ("vgg", Supervised(), "float32"),
    ("vgg", FedMix(0.1), "float32"),
    ("charlstm", FedMix(0.1), "float32"),
    ("vgg", FedMix(0.1), "bf16"),
]


@pytest.fixture(scope="module")
def child() -> Iterator[Interpreter]:
    """A process of its own, in which torch believes in a GPU."""
    if find_spec("triton") is None:
        pytest.skip(
            "Triton is not installed; it comes with PyTorch for GPUs, or by itself as the package "
            "triton"
        )
    with interpreter() as ready:
        ready.pool.submit(gpu_step.pretend).result()
        yield ready


@pytest.mark.parametrize(
    ("kind", "objective", "how"), CASES, ids=lambda value: str(value).split("(")[0]
)
def test_a_step(child: Interpreter, kind: str, objective: Objective, how: Precision) -> None:
    """Rounding gives some 1e-6, and up to 1e-2 where it moves a sample over a kink of a ReLU or a
    max-pool; a mistake gives 1.

    With bf16 a compiler rounds gradients in other places than the plain step, by up to 2^−8 each
    time.
    """
    errors = child.pool.submit(gpu_step.errors, kind, objective, how).result()
    assert all(e < 0.03 for e in errors.values()), errors
    assert any(errors.values())  # not the same code twice
