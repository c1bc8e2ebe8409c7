"""The round loop: averages, rates and metrics by hand, and runs that stop and go on as if they had
not.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedmix import (
    BadInput,
    Exchange,
    Federation,
    FedMix,
    GlobalMix,
    Hidden,
    LocalMix,
    NaiveMix,
    Objective,
    Proximal,
    Round,
    Supervised,
    Training,
    data,
    models,
)
from fedmix.data import FederatedData, HeldOut, Ragged, from_arrays
from fedmix.data.transforms import Images
from fedmix.models import initialised
from fedmix.training.aggregation import Average, Updates
from fedmix.training.draws import ClientPlan
from fedmix.training.engines import Engine
from fedmix.training.engines.vectorised import VectorisedRunner
from fedmix.training.evaluation import ClientScores
from tests.synthetic import ENGINES, NAMES, listen, one_after_another
from tests.synthetic import federated as synthetic

Array = np.ndarray[Any, Any]


# One weight, by hand

X, Y = [1.0, 2.0, -1.0, 3.0, 0.5, 4.0], [1.0, 3.0, 0.5, 2.0, -1.0, 5.0]
ROWS = {0: [0], 1: [1, 2, 3]}


def line(start: float = 0.0) -> nn.Linear:
    """z = w·x."""
    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, start)
    return module


def two_clients() -> FederatedData:
    x, y = np.array(X)[:, None], np.array(Y)[:, None]
    return from_arrays(x, y, [ROWS[0], ROWS[1]], (x[:2], y[:2]))


def slope(w: float, rows: list[int]) -> float:
    """d/dw of mean ½(w·x − y)²."""
    return sum((w * X[i] - Y[i]) * X[i] for i in rows) / len(rows)


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
def test_average_is_weighted_by_samples(engine: Engine) -> None:
    """Clients of 1 and 3 samples: w ← (1·w_0 + 3·w_1) / 4, at a rate of 0.1·0.5^round."""
    training = Training(2, batch_size=10, lr=0.1, lr_decay=0.5)
    federation = Federation(line(), two_clients(), Supervised(), training, engine=engine)
    w = 0.0
    for round_, _ in enumerate(federation.run(4)):
        lr = 0.1 * 0.5**round_
        w = (1 * (w - lr * slope(w, ROWS[0])) + 3 * (w - lr * slope(w, ROWS[1]))) / 4
        assert float(federation.params["weight"]) == pytest.approx(w, rel=1e-5)
    # The first round in numbers: w_0 = 0.1·1, w_1 = 0.1·(6 − 0.5 + 6)/3.
    first = Federation(line(), two_clients(), Supervised(), training, engine=engine)
    next(first.run(1))
    assert float(first.params["weight"]) == pytest.approx((0.1 + 3 * 0.1 * 11.5 / 3) / 4, rel=1e-6)


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
def test_momentum_and_weight_decay(engine: Engine) -> None:
    """v ← 0.9·v + slope + 0.01·w, w ← w − 0.05·v, three steps (epochs) of full batches, v = 0 at
    the start of every round.
    """
    training = Training(2, epochs=3, batch_size=10, lr=0.05, momentum=0.9, weight_decay=0.01)
    federation = Federation(line(0.7), two_clients(), Supervised(), training, engine=engine)
    list(federation.run(2))
    w = 0.7
    for _ in range(2):
        after = []
        for k in (0, 1):
            mine, v = w, 0.0
            for _ in range(3):
                v = 0.9 * v + slope(mine, ROWS[k]) + 0.01 * mine
                mine -= 0.05 * v
            after.append(mine)
        w = (after[0] + 3 * after[1]) / 4
    assert float(federation.params["weight"]) == pytest.approx(w, rel=1e-5)


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
def test_local_loss_is_weighted_by_samples(engine: Engine) -> None:
    """At w = 1, ½z² − z·y per sample; the mean of a client's steps, then over clients by their
    samples.
    """
    federation = Federation(
        line(1.0), two_clients(), Supervised(), Training(2, batch_size=10), engine=engine
    )
    each = [X[i] ** 2 / 2 - X[i] * Y[i] for i in range(4)]
    assert next(federation.run(1)).local_loss == pytest.approx(
        (each[0] + 3 * sum(each[1:]) / 3) / 4, rel=1e-5
    )


def test_server_average_of_chunks() -> None:
    """Three clients in two chunks: (2·1 + 3·10 + 5·100) / 10 = 53.2, and losses (2·1 + 3·2 + 5·4) /
    10 = 2.8.
    """
    chunks = [
        Updates([7, 3], {"w": torch.tensor([[1.0], [10.0]])}, torch.tensor([1.0, 2.0])),
        Updates([5], {"w": torch.tensor([[100.0]])}, torch.tensor([4.0])),
    ]
    average = Average({"w": torch.zeros(1)}, {7: 2, 3: 3, 5: 5})
    for chunk in chunks:
        average.add(chunk)
    mean = average.mean(["w"], 3, np.random.default_rng(0))
    assert float(mean["w"]) == pytest.approx(53.2, rel=1e-6)
    assert average.loss == pytest.approx(2.8, rel=1e-6)


def test_server_average_keeps_double_precision() -> None:
    chunk = Updates(
        [0, 1, 2],
        {"w": torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64)[:, None]},
        torch.zeros(3),
    )
    average = Average({"w": torch.zeros(1, dtype=torch.float64)}, {0: 1, 1: 1, 2: 1})
    average.add(chunk)
    assert float(average.mean(["w"], 3, np.random.default_rng(0))["w"]) == pytest.approx(
        1.0, abs=1e-12
    )


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
def test_changed_data_is_trained_on(engine: Engine) -> None:
    """Client 1 gets rows 4 and 5 before the second round and weighs 2 of 3 from then on."""
    changes: dict[int, dict[int, list[int]]] = {1: {1: [4, 5]}}
    training = Training(2, batch_size=10, lr=0.02)
    federation = Federation(
        line(),
        two_clients(),
        Supervised(),
        training,
        engine=engine,
        changes=lambda r: changes.get(r, {}),
    )
    w, held = 0.0, dict(ROWS)
    for round_, _ in enumerate(federation.run(3)):
        held |= changes.get(round_, {})
        sizes = [len(held[k]) for k in (0, 1)]
        w = sum(n * (w - 0.02 * slope(w, held[k])) for k, n in enumerate(sizes)) / sum(sizes)
        assert float(federation.params["weight"]) == pytest.approx(w, rel=1e-5)
    assert sizes == [1, 2]


# Metrics by hand


def known(test_clients: Ragged | None = None) -> Federation:
    """Logits (x_0, x_1), and six test samples of which four are right."""
    module = nn.Linear(2, 2, bias=False)
    module.weight.data = torch.eye(2)
    test_x = np.array([[2.0, 0.0], [0.0, 1.0], [1.0, 3.0], [5.0, 1.0], [0.0, 2.0], [1.0, 0.0]])
    test_y = np.array([0, 1, 0, 1, 1, 0])
    made = from_arrays(test_x, test_y, [[0, 1, 2], [3], [4, 5]], (test_x, test_y), classes=2)
    made = replace(made, test=replace(made.held_out, clients=test_clients))
    return Federation(module, made, Supervised(), Training(1))


def test_accuracy_and_loss() -> None:
    """−log softmax of the right logit is log(1 + e^−gap): gaps 2, 1, −2, −4, 2, 1."""
    metrics = known().evaluate()
    assert metrics["accuracy"] == pytest.approx(4 / 6)
    assert metrics["loss"] == pytest.approx(
        sum(math.log1p(math.exp(-gap)) for gap in (2, 1, -2, -4, 2, 1)) / 6, rel=1e-6
    )
    assert set(metrics) == {"accuracy", "loss"}


def test_more_test_samples_than_one_block() -> None:
    """2,500 samples, of which the first 700 and the last 3 are wrong."""
    x = np.tile([1.0, 0.0], (2500, 1))
    y = np.zeros(2500, int)
    y[:700] = y[-3:] = 1
    module = nn.Linear(2, 2, bias=False)
    module.weight.data = torch.eye(2)
    federation = Federation(
        module, from_arrays(x, y, [[0, 1]], (x, y), classes=2), Supervised(), Training(1)
    )
    assert federation.evaluate()["accuracy"] == pytest.approx(1797 / 2500)


def test_regression_metrics() -> None:
    """w = 2 on (1, 1) and (2, 3): errors 1 and 1, so mse 1 and ½·1² reported as the loss."""
    assert Federation(line(2.0), two_clients(), Supervised(), Training(1)).evaluate() == {
        "mse": 1.0,
        "loss": 0.5,
    }


def grey(*levels: int) -> FederatedData:
    """Pictures of one byte, two a client; as model inputs they are (byte/255 − 0.4) / 0.2."""
    x, y = np.array(levels, np.uint8).reshape(-1, 1, 1, 1), np.arange(len(levels)) % 2
    clients = Ragged.of(np.arange(len(x)).reshape(-1, 2))
    return FederatedData(x, y, clients, HeldOut(x, y), 2, Images((0.4,), (0.2,)))


def test_test_inputs_are_normalised() -> None:
    """Logits (v, 0) for inputs v = −2 of class 0 and 3 of class 1: the right one lacks 2 and 3."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(1, 2, bias=False))
    module[1].weight.data = torch.tensor([[1.0], [0.0]])
    metrics = Federation(module, grey(0, 255), Supervised(), Training(1)).evaluate()
    assert metrics["accuracy"] == 0.0
    expected = sum(math.log1p(math.exp(gap)) for gap in (2, 3)) / 2
    assert metrics["loss"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("hidden", [False, True])
def test_means_are_normalised_once(hidden: bool) -> None:
    """Inputs −2, 0 | 1, 3 have the means −1 and 2; means of hidden states 3x + 1 are −2 and 7."""
    objective: Objective = Hidden(NaiveMix(0.1), 1) if hidden else NaiveMix(0.1)
    module = nn.Sequential(nn.Conv2d(1, 1, 1), nn.Flatten(), nn.Linear(1, 2))
    nn.init.constant_(module[0].weight, 3)  # type: ignore[arg-type]
    nn.init.constant_(module[0].bias, 1)  # type: ignore[arg-type]
    federation = Federation(module, grey(0, 102, 153, 255), objective, Training(1))
    work = listen(federation)
    list(federation.run(1))
    assert work[0].pool is not None
    found = sorted(work[0].pool.x.flatten().tolist())
    assert found == pytest.approx([-2, 7] if hidden else [-1, 2], abs=1e-5)


def test_global_partners_are_drawn_from_all_clients() -> None:
    """72 draws in 6 rounds of 2 clients, 3 steps and 2 samples: 4·(3/4)^72 = 4e-9 to miss one."""
    module, training = nn.Sequential(nn.Flatten(), nn.Linear(1, 2)), Training(2, 3, 2)
    federation = Federation(module, grey(0, 1, 2, 3), GlobalMix(lam=0.1), training)
    work = listen(federation)
    list(federation.run(6))
    partners = [p.partners for round_ in work for p in round_.plans if p.partners is not None]
    assert set(np.concatenate(partners).flatten().tolist()) == {0, 1, 2, 3}


def test_scores_by_client() -> None:
    """Client 0 has test samples 0, 1, 2 (2 of 3 right), client 1 sample 3 (0 of 1), client 2
    samples 4, 5 (2 of 2).
    """
    scores = known(Ragged.of([[0, 1, 2], [3], [4, 5]])).evaluate_clients()
    assert scores.samples.tolist() == [3, 1, 2]
    assert scores.scores.tolist() == pytest.approx([2 / 3, 0, 1])
    assert scores.between(2, 3) == pytest.approx((5 / 6, 1 / 6, 2))
    assert scores.between(1, 1) == (0.0, 0.0, 1)
    assert scores.between(1, 3)[1] == pytest.approx(
        math.sqrt(((1 / 9) ** 2 + (5 / 9) ** 2 + (4 / 9) ** 2) / 3)
    )
    mean, deviation, count = scores.between(4, 9)
    assert math.isnan(mean)
    assert math.isnan(deviation)
    assert count == 0


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
def test_scores_by_client_after_changes(engine: Engine) -> None:
    """Client 1 goes from one training sample to four before the second round; test samples stay
    whose they were.
    """
    test_clients = Ragged.of([[0, 1, 2], [3], [4, 5]])
    start = known(test_clients)
    changed = Federation(
        start.model.module, start.data, Supervised(), Training(3, lr=1e-9), engine=engine,
        changes=lambda round_: {1: [0, 1, 2, 3]} if round_ == 1 else {},
    )  # fmt: skip
    sizes = []
    for _ in changed.run(2):
        scores = changed.evaluate_clients()
        sizes.append(scores.samples.tolist())
        assert scores.scores.tolist() == pytest.approx([2 / 3, 0, 1])
        assert scores.between(4, 4) == (
            (0.0, 0.0, 1)
            if changed.round == 2
            else pytest.approx((math.nan, math.nan, 0), nan_ok=True)
        )
    assert sizes == [[3, 1, 2], [3, 4, 2]]
    again = Federation(
        start.model.module, start.data, Supervised(), Training(3), changes=changed.changes
    )
    again.restore(changed.state())
    assert again.evaluate_clients().samples.tolist() == [3, 4, 2]
    assert again.evaluate() == changed.evaluate()


def test_size_groups_include_their_ends() -> None:
    scores = ClientScores(np.array([10, 20, 30, 40]), np.array([0.1, 0.2, 0.4, 0.8]))
    assert scores.between(20, 30) == pytest.approx((0.3, 0.1, 2))


def test_test_samples_of_nobody_have_no_client_scores() -> None:
    with pytest.raises(
        BadInput, match="its test samples belong to no client; only natural partitions"
    ):
        known().evaluate_clients()


def test_evaluate_every() -> None:
    federation = known()
    done = list(federation.run(5, evaluate_every=2))
    assert [r.round for r in done] == [1, 2, 3, 4, 5]
    assert [r.metrics is not None for r in done] == [False, True, False, True, True]
    assert [r.round for r in federation.run(5)] == []
    assert [r.round for r in federation.run(7)] == [6, 7]


# Stop and go on


SIZES = (9, 4, 12, 7, 5)


def classes(seed: int = 0) -> FederatedData:
    """Five clients and twenty spare rows."""
    rng = np.random.default_rng(seed)
    total = sum(SIZES) + 20
    x, y = rng.standard_normal((total, 6)), rng.integers(0, 3, total)
    return from_arrays(x, y, one_after_another(SIZES), (x[::2], y[::2]), classes=3)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))


def sometimes(round_: int) -> Mapping[int, list[int]]:
    """Changes before rounds 1, 2 and 4 (from 0): before, at and after the stop."""
    return {
        1: {0: [37, 38, 39]},
        2: {1: [40, 41, 42, 43, 44], 3: [45]},
        4: {0: [46, 47, 48, 49]},
    }.get(round_, {})


RUNS: dict[str, tuple[Objective, dict[str, Any]]] = {
    "supervised": (Supervised(), {}),
    "fedmix": (FedMix(0.1), {"exchange": Exchange(m=2, noise=0.1, average=2)}),
    "hidden": (Hidden(FedMix(0.1), 1), {"exchange": Exchange(m=3)}),
    "changes": (
        FedMix(0.1) + Proximal(0.1),
        {"changes": sometimes, "exchange": Exchange(m=1, noise=0.1)},
    ),
    "changes-held-back": (
        NaiveMix(0.1),
        {"changes": sometimes, "exchange": Exchange(m=1, wait=0.5)},
    ),
    "hidden-changes": (Hidden(NaiveMix(0.1), 2), {"changes": sometimes}),
    "localmix-changes": (LocalMix(alpha=1.0), {"changes": sometimes}),
}


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
@pytest.mark.parametrize("name", RUNS)
def test_a_stopped_run_goes_on_as_if_it_had_not(name: str, engine: Engine) -> None:
    objective, settings = RUNS[name]

    def start() -> Federation:
        training = Training(3, batch_size=4, lr=0.1, lr_decay=0.9, momentum=0.9)
        return Federation(
            initialised(net, 0), classes(), objective, training, engine=engine, seed=4, **settings
        )

    whole = start()
    rounds = list(whole.run(5))
    first = start()
    begun = list(first.run(2))
    saved = {n: t.clone() for n, t in first.state().items()}
    second = start()
    second.restore(saved)
    assert second.data.clients.flat.tolist() == first.data.clients.flat.tolist()
    went_on = list(second.run(5))
    assert [r.round for r in went_on] == [3, 4, 5]
    assert begun + went_on == rounds  # losses, bytes and metrics, to the bit
    assert second.traffic == whole.traffic
    for n, p in whole.params.items():
        assert torch.equal(second.params[n], p)
    assert [second.data.clients[k].tolist() for k in range(5)] == [
        whole.data.clients[k].tolist() for k in range(5)
    ]
    if "changes" in settings:
        assert whole.data.clients[0].tolist() == [46, 47, 48, 49]
    assert all(torch.equal(t, saved[n]) for n, t in first.state().items())


def test_a_state_can_be_written_and_read(tmp_path: Any) -> None:
    """It holds tensors only, so that torch.load needs to trust nobody."""
    federation = Federation(initialised(net, 0), classes(), FedMix(0.1), Training(3))
    list(federation.run(2))
    torch.save(federation.state(), tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", weights_only=True)
    back = Federation(initialised(net, 1), classes(), FedMix(0.1), Training(3))
    back.restore(loaded)
    assert next(back.run(3)) == next(federation.run(3))


def test_states_that_do_not_fit_are_refused() -> None:
    federation = Federation(initialised(net, 0), classes(), FedMix(0.1), Training(3))
    list(federation.run(1))
    state = federation.state()
    with pytest.raises(BadInput, match="belongs to another model"):
        Federation(nn.Linear(6, 3), classes(), FedMix(0.1), Training(3)).restore(state)
    wider = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Dropout(0.3), nn.Linear(9, 3))
    with pytest.raises(BadInput, match="belongs to another model"):
        Federation(wider, classes(), FedMix(0.1), Training(3)).restore(state)
    with pytest.raises(
        BadInput, match="restore a state into a new Federation, before its first round"
    ):
        federation.restore(state)


def test_a_state_without_means_is_refused_by_an_objective_with_means() -> None:
    plain = Federation(initialised(net, 0), classes(), Supervised(), Training(3))
    list(plain.run(1))
    with pytest.raises(BadInput, match="means"):
        Federation(initialised(net, 0), classes(), FedMix(0.1), Training(3)).restore(plain.state())


# The same draws for every algorithm


def test_one_seed_gives_every_algorithm_the_same_clients_and_batches() -> None:
    objectives: list[Objective] = [
        Supervised(),
        Supervised() + Proximal(0.1),
        LocalMix(alpha=1.0),
        GlobalMix(alpha=1.0),
        NaiveMix(0.1, per="sample"),
        FedMix(0.2),
        Hidden(FedMix(0.1), 1),
    ]

    def drawn(objective: Objective, seed: int) -> list[tuple[list[int], list[ClientPlan]]]:
        federation = Federation(
            initialised(net, 0), classes(), objective, Training(2, batch_size=4), seed=seed
        )
        work = listen(federation)
        list(federation.run(2))
        return [(w.clients.tolist(), w.plans) for w in work]

    reference, other = drawn(objectives[0], 0), drawn(objectives[0], 1)
    assert reference[0][0] != reference[1][0]
    for objective in objectives[1:]:
        for (clients, plans), (same, expected) in zip(drawn(objective, 0), reference, strict=True):
            assert clients == same
            for one, two in zip(plans, expected, strict=True):
                np.testing.assert_array_equal(one.rows, two.rows)
                np.testing.assert_array_equal(one.mask, two.mask)
                np.testing.assert_array_equal(one.keys, two.keys)
    assert [clients for clients, _ in other] != [clients for clients, _ in reference]


# Something to learn


@pytest.mark.parametrize(
    "objective", [Supervised(), NaiveMix(0.1), FedMix(0.1), LocalMix(alpha=0.2)], ids=str
)
def test_diabetes_is_learned(objective: Objective) -> None:
    """To predict the training mean (which is 0) costs the mean of y² on the test set; linear
    regression halves that.
    """
    patients = data.diabetes(10)
    baseline = float((patients.held_out.y.astype(float) ** 2).mean())
    module = initialised(lambda: models.mlp(10, 1, 16), 0)
    federation = Federation(
        module, patients, objective, Training(5, epochs=2, batch_size=10, lr=0.02), seed=0
    )
    before = federation.evaluate()["mse"]
    last: Round = list(federation.run(15, evaluate_every=15))[-1]
    assert last.metrics is not None
    assert last.metrics["mse"] < min(before, 0.7 * baseline)
    scores = federation.evaluate_clients()
    sizes = patients.held_out.clients
    assert sizes is not None
    assert float(scores.scores @ sizes.sizes) / len(patients.held_out.y) == pytest.approx(
        last.metrics["mse"], rel=1e-6
    )


def test_an_interrupted_round_can_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in mid-round, then on: weights and bytes are those of a run that was never
    interrupted.
    """

    def start() -> Federation:
        def changes(round_: int) -> dict[int, list[int]]:
            return {0: [round_, 1, 2, 3], 1: [4, 5, 6 + round_]} if round_ else {}

        data = synthetic("digits_cnn", (6, 6, 6, 6))
        exchange = Exchange(m=3, noise=0.1)
        return Federation(
            initialised(models.digits_cnn, 1),
            data,
            NaiveMix(0.1),
            Training(2),
            exchange=exchange,
            changes=changes,
        )

    whole = start()
    list(whole.run(4))
    broken, real, calls = start(), VectorisedRunner._run, []

    def interrupt_once(self: VectorisedRunner, *args: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(self, *args)

    monkeypatch.setattr(VectorisedRunner, "_run", interrupt_once)
    with pytest.raises(KeyboardInterrupt):
        list(broken.run(4))
    assert broken.round == 1
    list(broken.run(4))
    assert broken.traffic == whole.traffic
    assert all(torch.equal(p, broken.params[n]) for n, p in whole.params.items())
