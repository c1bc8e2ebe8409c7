"""FedLC and FedRS, which know the client's label counts, against softmaxes by hand."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedmix import BadInput, Federation, FedMix, Objective, Proximal, Supervised, Training, losses
from fedmix.core.types import Batch, Params
from fedmix.data import FederatedData, from_arrays
from fedmix.models import Model
from fedmix.objectives.fedlc import FedLC
from fedmix.objectives.fedrs import FedRS
from fedmix.training.engines import Engine, Sequential, Vectorised
from tests.synthetic import ENGINES, NAMES, listen
from tests.training.engines.test_compiled import compiling

COUNTS = (16.0, 1.0, 0.0)
Z = (0.5, -1.0, 2.0)
OBJECTIVES: dict[str, Objective] = {
    "fedlc": FedLC(tau=0.7),
    "fedrs": FedRS(alpha=0.3),
    "fedlc+prox": FedLC() + Proximal(0.1),
}


def tensor(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def value(objective: Objective, label: int, counts: tuple[float, ...] = COUNTS) -> float:
    """Of one sample whose outputs are Z: the model is the identity."""
    model = Model(nn.Linear(3, 3, bias=False), losses.cross_entropy)
    params: Params = {"weight": torch.eye(3, dtype=torch.float64)}
    batch = Batch(
        tensor(Z),
        tensor([float(label == c) for c in range(3)]),
        tensor(1.0),
        torch.tensor(0),
        counts=tensor(*counts),
    )
    return float(objective(model, params, params, batch))


def cross_entropy(z: tuple[float, ...], label: int) -> float:
    return math.log(sum(math.exp(v) for v in z)) - z[label]


@pytest.mark.parametrize("label", [0, 1])
def test_fedlc_takes_a_margin_from_each_output(label: int) -> None:
    """τ = 2: 16^(−1/4) = 1/2 and 1^(−1/4) = 1 give 0.5 − 1 and −1 − 2.

    The class that the client does not have counts as 10⁻⁸ samples: 2 − 2·(10⁻⁸)^(−1/4) = 2 − 200,
    whose exponential is nothing beside the others.
    """
    expected = cross_entropy((0.5 - 1, -1 - 2, 2 - 200), label)
    assert value(FedLC(tau=2.0), label) == pytest.approx(expected, abs=1e-12)
    assert expected == pytest.approx(cross_entropy((-0.5, -3.0), label), abs=1e-12)


@pytest.mark.parametrize("label", [0, 1])
def test_fedrs_scales_the_outputs_of_absent_classes(label: int) -> None:
    """α = 1/4: only the last of 0.5, −1, 2 becomes 0.5."""
    expected = cross_entropy((0.5, -1.0, 0.5), label)
    assert value(FedRS(alpha=0.25), label) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("objective", [FedLC(tau=0.0), FedRS(alpha=1.0)], ids=["fedlc", "fedrs"])
def test_without_effect_they_are_the_usual_loss(objective: Objective) -> None:
    assert value(objective, 1) == pytest.approx(cross_entropy(Z, 1), abs=1e-12)


def test_equal_counts_leave_fedlc_as_it_is() -> None:
    """The same margin for all classes is none."""
    assert value(FedLC(), 2, (5.0, 5.0, 5.0)) == pytest.approx(cross_entropy(Z, 2), abs=1e-12)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: FedLC(tau=-1), "FedLC: tau=-1 must be 0 or more, and finite"),
        (lambda: FedLC(tau=math.inf), "FedLC: tau=inf must be 0 or more, and finite"),
        (lambda: FedRS(alpha=1.5), r"FedRS: alpha=1.5 is outside \[0, 1\]"),
    ],
)
def test_bad_settings_are_refused(build: Any, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        build()


# In a federation

LABELS = [[0, 0, 0, 1], [2, 2, 1], [1, 1, 1, 1, 1, 0]]


def data() -> FederatedData:
    rng = np.random.default_rng(0)
    y = np.array([label for own in LABELS for label in own] + [2, 2, 0])
    x = rng.standard_normal((len(y), 4))
    rows = np.split(np.arange(13), [4, 7])
    return from_arrays(x, y, rows, (x, y), classes=3)


def federation(
    objective: Objective, engine: Engine | None = None, batch: int = 3, **more: Any
) -> Federation:
    torch.manual_seed(0)
    training = Training(3, epochs=2, batch_size=batch, lr=0.2, momentum=0.5)
    return Federation(nn.Linear(4, 3), data(), objective, training, engine=engine, **more)


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
def test_counts_are_the_clients_own_and_follow_changes(engine: Engine) -> None:
    """Before round 2, client 1 gets the last three samples, of classes 2, 2, 0, and a 0 and a 1."""
    run = federation(FedLC(), engine, changes=lambda r: {1: [13, 14, 15, 0, 7]} if r == 1 else {})
    work = listen(run)
    list(run.run(2))
    for done, of_one in zip(work, ([0, 1, 2], [2, 1, 2]), strict=True):
        counts = {0: [3, 1, 0], 1: of_one, 2: [1, 5, 0]}
        assert done.known.counts is not None
        assert done.known.counts.tolist() == [counts[k] for k in done.clients.tolist()]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_engines_agree(name: str) -> None:
    one, *others = (
        federation(OBJECTIVES[name], engine)
        for engine in (Sequential(), Vectorised(), Vectorised(chunk=2))
    )
    list(one.run(3))
    for other in others:
        list(other.run(3))
        torch.testing.assert_close(one.params, other.params, rtol=0, atol=1e-5)


def test_the_compiled_step_agrees() -> None:
    one, other = federation(FedLC(), Vectorised(compile=True)), federation(FedLC(), Sequential())
    with compiling():
        list(one.run(2))
    list(other.run(2))
    torch.testing.assert_close(one.params, other.params, rtol=0, atol=1e-5)


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
@pytest.mark.parametrize("name", ["fedlc", "fedrs"])
def test_one_step_by_hand(name: str, engine: Engine) -> None:
    """All samples of a client in a batch: w − lr·(p − y)ᵀx of the changed softmax, averaged.

    Client 1 has three samples, as many as there are classes, so that a mask of its samples would
    fit its counts too.
    """
    torch.manual_seed(0)
    module, samples = nn.Linear(4, 3), data()
    w = np.column_stack([module.weight.detach().numpy(), module.bias.detach().numpy()])
    w, new = w.astype(np.float64), np.zeros((3, 5))
    for own in (samples.clients[k] for k in range(3)):
        x, y = np.column_stack([samples.x[own], np.ones(len(own))]), samples.y[own]
        counts = np.bincount(y, minlength=3)
        scale = np.where(counts > 0, 1.0, 0.3) if name == "fedrs" else np.ones(3)
        margin = 0.7 * np.maximum(counts, 1e-8) ** -0.25 if name == "fedlc" else np.zeros(3)
        e = np.exp((x @ w.T) * scale - margin)
        slope = (e / e.sum(1, keepdims=True) - np.eye(3)[y]) * scale
        new += len(own) / 13 * (w - 0.2 * slope.T @ x / len(own))
    training = Training(3, batch_size=10, lr=0.2)
    run = Federation(module, samples, OBJECTIVES[name], training, engine=engine)
    list(run.run(1))
    found = np.column_stack([run.params["weight"].numpy(), run.params["bias"].numpy()])
    np.testing.assert_allclose(found, new, rtol=0, atol=1e-6)


def test_only_samples_are_masked() -> None:
    """A batch of three with one sample of padding, and three classes."""
    batch = Batch(
        torch.arange(6.0).reshape(3, 2),
        torch.eye(3),
        torch.tensor([1.0, 1.0, 0.0]),
        torch.tensor(0),
        counts=torch.tensor(COUNTS),
        samples=torch.tensor(17.0),
        kept={"weight": torch.ones(3)},
        shared={"weight": torch.zeros(3)},
    )
    found = batch.only(batch.mask.bool())
    assert found.x.tolist() == [[0, 1], [2, 3]]
    assert found.mask.tolist() == [1, 1]
    assert found.counts is batch.counts
    assert found.samples is batch.samples
    assert (found.kept, found.shared) == (batch.kept, batch.shared)


@pytest.mark.parametrize("objective", [FedLC(), FedRS()], ids=["fedlc", "fedrs"])
def test_regression_is_refused(objective: Objective) -> None:
    x = np.random.default_rng(0).standard_normal((6, 4))
    values = from_arrays(x, x[:, :1], [[0, 1], [2, 3]], (x, x[:, :1]))
    with pytest.raises(BadInput, match=r"needs label counts, and .* is a regression; use another"):
        Federation(nn.Linear(4, 1), values, objective, Training(2))


def test_counts_are_not_made_where_nobody_asks() -> None:
    for objective in (Supervised(), FedMix(0.1)):
        run = federation(objective)
        work = listen(run)
        list(run.run(1))
        assert work[0].known == (None, None, None, None)
