"""How products are rounded: inside a local step only, whatever happens there."""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedmix import BadInput, Federation, Objective, Supervised, Training
from fedmix.core.types import Batch, Params
from fedmix.data import FederatedData, from_arrays
from fedmix.kernels.precision import Precision, arithmetic, check_device, current
from fedmix.models import Model
from fedmix.training.aggregation import Sum
from fedmix.training.engines import Engine
from tests.synthetic import ENGINES, NAMES

PRECISIONS: tuple[Precision, ...] = get_args(Precision)


def holds() -> tuple[str, bool, bool]:
    return current(), torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


def data() -> FederatedData:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((12, 4)), rng.integers(0, 3, 12)
    return from_arrays(x, y, [[0, 1, 2], [3, 4, 5, 6], [7, 8, 9, 10, 11]], (x, y), classes=3)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_flags_inside_and_after(precision: Precision) -> None:
    before = holds()
    with arithmetic(precision):
        assert holds() == (precision, precision != "float32", precision != "float32")
    assert holds() == before
    assert before[0] == "float32"


def test_flags_are_restored_after_an_exception() -> None:
    before = holds()
    with pytest.raises(ZeroDivisionError), arithmetic("bf16"):
        raise ZeroDivisionError
    assert holds() == before


def test_blocks_inside_blocks() -> None:
    before = holds()
    with arithmetic("tf32"):
        with arithmetic("float32"):
            assert holds() == ("float32", False, False)
        assert holds() == ("tf32", True, True)
    assert holds() == before


def test_the_newer_way_to_set_it_is_fine_too() -> None:
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        with arithmetic("float32"):
            assert torch.backends.cuda.matmul.fp32_precision == "ieee"
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


@pytest.mark.parametrize("flag", [True, False])
def test_what_the_user_had_set_comes_back(flag: bool) -> None:
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = flag
        with arithmetic("float32" if flag else "tf32"):
            assert holds()[1] is not flag
        assert torch.backends.cuda.matmul.allow_tf32 is flag
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize(("capability", "precision", "refused"), [
    ((7, 5), "bf16", True), ((7, 5), "tf32", False), ((8, 0), "bf16", False),
    ((9, 0), "bf16", False),
])  # fmt: skip
def test_bf16_needs_a_gpu_that_has_it(
    capability: tuple[int, int],
    precision: Precision,
    refused: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla T4")
    sentence = (
        "precision 'bf16' needs a GPU of compute capability 8.0 or more, "
        "which Tesla T4 is not; choose float32"
    )
    with pytest.raises(BadInput, match=sentence) if refused else nullcontext():
        check_device(precision, torch.device("cuda", 0))
    check_device(precision, torch.device("cpu"))


def test_an_unknown_one_is_refused() -> None:
    before = holds()
    with (
        pytest.raises(
            BadInput, match="precision 'fp16' is unknown; choose one of tf32, float32, bf16"
        ),
        arithmetic("fp16"),  # type: ignore[arg-type]
    ):
        pytest.fail("the block was entered")
    assert holds() == before


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
def test_a_federation_refuses_it_too(engine: Engine) -> None:
    wrong: Any = "double"
    with pytest.raises(
        BadInput, match="precision 'double' is unknown; choose one of tf32, float32, bf16"
    ):
        list(
            Federation(
                nn.Linear(4, 3),
                data(),
                Supervised(),
                Training(2),
                engine=replace(engine, precision=wrong),
            ).run(1)
        )


SEEN = list[str]()


@dataclass(frozen=True)
class Notes(Objective):
    """FedAvg's, which notes the arithmetic that it is called in."""

    def __call__(self, model: Model, params: Params, anchor: Params, batch: Batch) -> Tensor:
        SEEN.append(current())
        return Supervised()(model, params, anchor, batch)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
def test_steps_are_rounded_and_averages_and_tests_are_not(
    engine: Engine, precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The average takes updates while the engine still works, but not in its precision."""
    outside = list[tuple[str, bool, bool]]()

    add = Sum.add

    def noting(self: Sum, *update: Any) -> None:
        outside.append(holds())
        add(self, *update)

    monkeypatch.setattr(Sum, "add", noting)
    before = holds()
    one_by_one: dict[str, Any] = {"chunk": 1} if engine.name == "vectorised" else {}
    federation = Federation(
        nn.Linear(4, 3),
        data(),
        Notes(),
        Training(3, batch_size=1),
        engine=replace(engine, precision=precision, **one_by_one),
    )
    SEEN.clear()  # the objective is tried first
    list(federation.run(1))
    assert set(SEEN) == {precision}
    assert outside == [before] * 3
    assert holds() == before
