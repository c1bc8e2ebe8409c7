"""A last layer from statistics: its weights, what clients release for it, and where it is set."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedmix import BadInput, Exchange, Federation, Head, NaiveMix, Supervised, Training, data
from fedmix.core.rng import streams
from fedmix.data.ragged import Ragged
from fedmix.exchange.statistics import LARGEST, Statistics, bounded, pooled, release, vectors
from fedmix.models import Model
from fedmix.models.last_layer import LastLayer
from fedmix.privacy.of_run import head_guarantee_of
from fedmix.runs.summary import privacy
from fedmix.training.batches import Resident
from fedmix.training.head import discriminant, fit

TRAINING = Training(2, epochs=1, batch_size=10, lr=0.1)


def samples(n: int = 90, width: int = 4, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Vectors whose classes differ in mean."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, classes, n)
    x = rng.normal(size=(n, width)) @ rng.normal(size=(width, width)) + y[:, None]
    return x.astype(np.float32), y


def given(clients: int = 3) -> data.FederatedData:
    x, y = samples()
    rows = np.array_split(np.argsort(y[:60], kind="stable"), clients)
    return data.from_arrays(x, y, clients=rows, test=(x[60:], y[60:]), classes=3)


def net(width: int = 4, classes: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, 6), nn.ReLU(), nn.Linear(6, classes))


def of(x: np.ndarray, y: np.ndarray, classes: int) -> Statistics:
    features, labels = torch.tensor(x).double(), torch.eye(classes).double()[torch.tensor(y)]
    return Statistics(labels.sum(0), labels.T @ features, features.T @ features)


def test_two_classes_by_hand() -> None:
    """Class 0 at (±1, 0), class 1 at (4, ±2), twice: means (0, 0) and (4, 0), shares 1/3 and 2/3.

    Within classes, variances are 2·1/6 = 1/3 and 4·4/6 = 8/3, with nothing between the two. Their
    mean is 3/2; with s = 1/2, Σ = diag(11/12, 25/12). So W = (0, 0) and (4·12/11, 0), b = log ⅓ and
    −½·16·12/11 + log ⅔.
    """
    x = np.array([[1, 0], [-1, 0], [4, 2], [4, -2], [4, 2], [4, -2]])
    weight, bias = discriminant(of(x, np.array([0, 0, 1, 1, 1, 1]), 2), 0.5)
    torch.testing.assert_close(weight, torch.tensor([[0, 0], [48 / 11, 0]]))
    torch.testing.assert_close(bias, torch.tensor([math.log(1 / 3), math.log(2 / 3) - 96 / 11]))


@pytest.mark.parametrize("shrinkage", [0.1, 0.7])
def test_it_is_scikit_learns_discriminant_on_the_pooled_features(shrinkage: float) -> None:
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    federated, model = given(), Model(net())
    params, resident = model.init(), Resident.on(torch.device("cpu"), federated)
    fitted = fit(Head(shrinkage), model, params, resident, 0, 1)
    features = torch.relu(torch.tensor(federated.x) @ params["0.weight"].T + params["0.bias"])
    rows = federated.clients.flat
    pooled_fit = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage)
    pooled_fit.fit(features[rows].double().numpy(), federated.y[rows])
    weight, bias = fitted.params["2.weight"], fitted.params["2.bias"]
    np.testing.assert_allclose(weight, pooled_fit.coef_, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(bias, pooled_fit.intercept_, rtol=1e-3, atol=1e-3)


def test_sums_over_clients_are_the_pooled_statistics() -> None:
    x, y = samples(20)
    clients = Ragged.of([[0, 3, 4], list(range(5, 20)), [1, 2]])
    features, labels = torch.tensor(x), torch.eye(3)[torch.tensor(y)]
    sent = release(features, labels, clients, Exchange(), streams(0, "n", np.arange(3)))
    assert (sent.x.shape, sent.y.shape) == ((3, 4 * 3 + 10), (3, 3))
    for mine, whole in zip(pooled(sent, clients.sizes, 4), of(x, y, 3), strict=True):
        torch.testing.assert_close(mine, whole.double(), rtol=1e-5, atol=1e-4)


def test_a_sample_is_bounded_and_the_noise_is_that_of_the_exchange() -> None:
    """‖(e_c ⊗ h, hhᵀ, e_c)‖² = ‖h‖² + ‖h‖⁴ + 1, at most 3 within the unit ball: nothing is cut."""
    x, y = samples(40)
    features, labels = bounded(torch.tensor(x), 2.0), torch.eye(3)[torch.tensor(y)]
    length = features.norm(dim=1)
    assert length.max() == pytest.approx(1)
    short = torch.tensor(x).norm(dim=1) < 2
    torch.testing.assert_close(features[short], torch.tensor(x)[short] / 2)
    both = torch.hypot(vectors(features, labels).norm(dim=1), labels.norm(dim=1))
    torch.testing.assert_close(both**2, length**2 + length**4 + 1)
    assert bool((both <= LARGEST + 1e-6).all())
    clients, head = Ragged.of([list(range(40))]), Head(clip=2.0, noise=0.5)
    plain, noisy = (
        release(features, labels, clients, how, streams(0, "n", np.arange(1)))
        for how in (replace(head.exchange, noise=0.0), head.exchange)
    )
    rng = next(streams(0, "n", np.arange(1)))  # inputs first, then labels
    noise = rng.standard_normal((1, 22), dtype=np.float32)
    np.testing.assert_allclose(noisy.x - plain.x, 0.5 * noise, atol=1e-6)
    noise = rng.standard_normal((1, 3), dtype=np.float32)
    np.testing.assert_allclose(noisy.y - plain.y, 0.5 * noise, atol=1e-6)


def test_what_one_release_guarantees() -> None:
    """A sample moves the means by 2√3/n at most, here with n = 20: μ = 2√3/(20·σ)."""
    run = Federation(net(), given(), Supervised(), TRAINING, head=Head(clip=2.0, noise=0.5))
    found = head_guarantee_of(run)
    assert found
    assert found.mu == pytest.approx(2 * math.sqrt(3) / (20 * 0.5))
    list(run.run(1))
    list(run.run(2))
    assert run.head_releases == 2  # it was asked for twice
    assert head_guarantee_of(run).mu == pytest.approx(math.sqrt(2) * found.mu)
    assert head_guarantee_of(run, level="client").mu == pytest.approx(math.sqrt(2) * 20 * found.mu)
    assert "beyond what the weights tell: (" in privacy(run)["privacy"]
    bare = Federation(net(), given(), Supervised(), TRAINING, head=Head())
    assert head_guarantee_of(bare).reason == "they carry no noise (head.noise)"


def test_it_follows_the_last_round_and_leaves_training_alone() -> None:
    """Bytes: each of 3 clients gets 4·6 + 6 weights before the last layer, and sends 6·3 + 21 + 3
    values.
    """
    plain = Federation(net(), given(), NaiveMix(0.1), TRAINING)
    run = Federation(net(), given(), NaiveMix(0.1), TRAINING, head=Head())
    before, after = list(plain.run(4, evaluate_every=2)), list(run.run(4, evaluate_every=2))
    assert [sorted(done.metrics or {}) for done in after] == [
        [], ["accuracy", "loss"], [],
        ["accuracy", "head_accuracy", "head_loss", "loss"],
    ]  # fmt: skip
    last, shown = before[-1].metrics, after[-1].metrics
    assert last is not None
    assert shown is not None
    assert {name: shown[name] for name in last} == last
    assert all(torch.equal(run.params[n], p) for n, p in plain.params.items())
    extra = vars(run.traffic).items() - vars(plain.traffic).items()
    assert dict(extra) == {
        "models_down": plain.traffic.models_down + 4 * 3 * 30,
        "means_up": plain.traffic.means_up + 4 * 3 * 42,
    }
    correct = run.model(run.headed, torch.tensor(run.data.held_out.x)).argmax(1)
    assert shown["head_accuracy"] == pytest.approx(
        float((correct.numpy() == run.data.held_out.y).mean())
    )
    assert shown["head_accuracy"] > shown["accuracy"]
    again = Federation(net(), given(), NaiveMix(0.1), TRAINING, head=Head())
    again.restore(run.state())
    assert again.head_releases == 1
    assert all(torch.equal(again.headed[n], p) for n, p in run.headed.items())


def test_since_a_round_and_a_callback_that_stops() -> None:
    every = Federation(net(), given(), Supervised(), TRAINING, head=Head(since=2))
    found = ["head_accuracy" in (done.metrics or {}) for done in every.run(4)]
    assert found == [False, True, True, True]
    assert every.head_releases == 3
    stopping = Federation(
        net(), given(), Supervised(), TRAINING, head=Head(),
        callbacks=[lambda done, run: run.stop() if done.round == 2 else None],
    )  # fmt: skip
    *_, last = stopping.run(9)
    assert (last.round, stopping.head_releases) == (2, 1)
    assert "head_accuracy" in (last.metrics or {})


def test_a_class_that_nobody_has_and_noise_that_drowns_all() -> None:
    x, y = samples()
    rows = [np.flatnonzero(y[:60] < 2)]
    lacking = data.from_arrays(x, y, clients=rows, test=(x[60:], y[60:]), classes=3)
    training = replace(TRAINING, clients_per_round=1)
    run = Federation(net(), lacking, Supervised(), training, head=Head())
    list(run.run(1))
    guessed = run.model(run.headed, torch.tensor(x)).argmax(1)
    assert set(guessed.tolist()) == {0, 1}
    drowned = Federation(net(), given(), Supervised(), TRAINING, head=Head(clip=1.0, noise=1e6))
    [done] = drowned.run(1)
    assert math.isfinite((done.metrics or {})["head_loss"])


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(self.layer(x))
        return result


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (nn.Sequential(nn.Linear(4, 3), nn.Tanh()), "outputs are not those"),
        (nn.Sequential(nn.Conv1d(1, 3, 4), nn.Flatten()), "no nn.Linear"),
        (nn.Linear(4, 3, bias=False), "has no bias"),
        (Twice(), "used twice"),
    ],
)
def test_models_without_such_a_layer_are_refused(module: nn.Module, why: str) -> None:
    x = torch.zeros(2, 1, 4) if "Conv1d" in repr(module) else torch.zeros(2, 4)
    with pytest.raises(BadInput, match=why):
        LastLayer(Model(module), Model(module).init(), x)


def test_what_does_not_fit_is_refused_before_the_first_round() -> None:
    x, _ = samples()
    regression = data.from_arrays(
        x, x[:, :1], clients=[list(range(60))], test=(x[60:], x[60:, :1]), classes=None
    )
    module, one = nn.Linear(4, 1), replace(TRAINING, clients_per_round=1)
    with pytest.raises(BadInput, match="has no classes"):
        Federation(module, regression, Supervised(), one, head=Head())
    for wrong in ({"shrinkage": 0.0}, {"clip": -1.0}, {"noise": 0.1}, {"since": 0}):
        with pytest.raises(BadInput, match="head"):
            Head(**wrong)
