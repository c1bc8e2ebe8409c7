from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.kernels.interpreter import Interpreter, interpreter


@pytest.fixture(scope="session")
def interpreted() -> Iterator[Interpreter]:
    if find_spec("triton") is None:
        pytest.skip(
            "Triton is not installed; it comes with PyTorch for GPUs, or by itself as the package "
            "triton"
        )
    with interpreter() as ready:
        yield ready
