"""A client whose numbers explode is named, with round, step and what its input looked like, on both
engines.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedmix import (
    BadInput,
    ClientFailure,
    Diverged,
    Federation,
    FedMix,
    Objective,
    Supervised,
    Training,
    models,
)
from fedmix.core.types import Batch, Params
from fedmix.models import Model
from fedmix.objectives import batch_mean
from fedmix.training.engines import Engine, Sequential, Vectorised
from tests.synthetic import ENGINES, NAMES, RAGGED, federated


class Explodes(nn.Module):
    """Returns NaN for the one image whose first pixel is saturated."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        out: Tensor = self.linear(flat) / (flat[:, :1] < 1.99)
        return out


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
def test_names_client_step_and_input(engine: Engine) -> None:
    data = federated("digits_cnn", pad=0)
    x = data.x.copy()
    x[:, 0, 0] = 0
    x[data.clients[2][5], 0, 0] = 255  # standardised: (1 − 0.5) / 0.25 = 2
    data = type(data)(**{**vars(data), "x": x})
    federation = Federation(
        Explodes(), data, Supervised(), Training(len(RAGGED), batch_size=10), engine=engine, seed=0
    )
    with pytest.raises(
        Diverged, match=r"the loss is NaN or infinite; its input was x .* lower the learning rate"
    ) as caught:
        list(federation.run(1))
    from fedmix.training.draws import draw_plan

    plan = draw_plan(0, 0, 2, RAGGED[2], federation.training, Supervised().needs)
    step = int((plan.rows == 5).any(1).nonzero()[0][0])
    assert (caught.value.round, caught.value.client, caught.value.step) == (1, 2, step)


class Breaks(nn.Module):
    """Works on the two samples of the check, and fails on a full batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 5:
            raise RuntimeError("only five at a time")
        out: Tensor = self.linear(x.flatten(1))
        return out


def test_reference_engine_says_where_code_failed() -> None:
    federation = Federation(
        Breaks(), federated("digits_cnn"), Supervised(), Training(5), engine=Sequential()
    )
    with pytest.raises(
        ClientFailure,
        match=r"round 1, client \d, step 0: RuntimeError: only five at a time; its input was x "
        r"\(\d+, 1, 8, 8\)",
    ) as caught:
        list(federation.run(1))
    assert not isinstance(caught.value, Diverged)


class Forgetful(Supervised):
    """Uses a mean that it did not ask for, which is an AttributeError."""

    def __call__(self, model: Model, params: Params, anchor: Params, batch: Batch) -> Tensor:
        means: Any = batch.mean_x
        total: Tensor = super().__call__(model, params, anchor, batch) + means.sum()
        return total


def test_reference_engine_says_where_an_objective_failed_whatever_the_error() -> None:
    federation = Federation(
        models.digits_cnn(), federated("digits_cnn"), Forgetful(), Training(5), engine=Sequential()
    )
    with pytest.raises(
        ClientFailure,
        match=r"round 1, client \d, step 0: AttributeError: 'NoneType' object has no attribute "
        r"'sum'",
    ):
        list(federation.run(1))


def test_overflow_in_the_last_step_is_found() -> None:
    federation = Federation(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 10)),
        federated("digits_cnn", (3, 3)),
        Supervised(),
        Training(2, lr=1e39),
    )
    with pytest.raises(Diverged, match="the update is NaN or infinite"):
        list(federation.run(1))
    assert all(torch.isfinite(p).all() for p in federation.params.values())


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
@pytest.mark.parametrize(
    ("objective", "advice"),
    [
        (Supervised(), "; lower the learning rate, momentum or weight decay"),
        (FedMix(0.1), " or lam, or take FedMix's logits form (objective.expand=logits)"),
    ],
)
def test_the_advice_fits_the_objective(engine: Engine, objective: Objective, advice: str) -> None:
    federation = Federation(
        models.digits_cnn(), federated("digits_cnn"), objective, Training(5, lr=1e39), engine=engine
    )
    with pytest.raises(Diverged) as caught:
        list(federation.run(1))
    assert str(caught.value).endswith(advice)


class Own(Objective):
    """Cross entropy of inputs that `change` was applied to."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        self.change = change

    def __call__(self, model: Model, params: Params, anchor: Params, batch: Batch) -> Tensor:  # noqa: ARG002
        outputs = model(params, self.change(batch.x), batch.key)
        return batch_mean(model.loss.value(outputs, batch.y), batch.mask)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda x: x if x[0].sum() > 0 else -x,
            r"asks for the value of a tensor, .* use torch.where, or engine=Sequential\(\)",
        ),
        (lambda x: x * x[0].max().item(), "asks for the value of a tensor"),
        (lambda x: torch.from_numpy(abs(x.numpy())), "asks for the value of a tensor"),
    ],
)
def test_what_cannot_be_done_for_all_clients_at_once_is_refused(
    change: Callable[[Tensor], Tensor], said: str, compiled: bool
) -> None:
    federation = Federation(
        models.digits_cnn(),
        federated("digits_cnn"),
        Own(change),
        Training(5),
        engine=Vectorised(compile=compiled),
    )
    with pytest.raises(BadInput, match=said):
        list(federation.run(1))


def test_another_error_of_an_objective_comes_as_it_is() -> None:
    def change(_: Tensor) -> Tensor:
        raise RuntimeError("mine")

    federation = Federation(
        models.digits_cnn(),
        federated("digits_cnn"),
        Own(change),
        Training(5),
        engine=Vectorised(compile=False),
    )
    with pytest.raises(RuntimeError, match=r"^mine$"):
        list(federation.run(1))
