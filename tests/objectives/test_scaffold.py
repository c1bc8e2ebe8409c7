"""SCAFFOLD against a plain loop in numpy, and what its clients keep."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedmix import (
    BadInput,
    Federation,
    FedMix,
    Hidden,
    Objective,
    Round,
    Supervised,
    Training,
)
from fedmix.core.types import Params
from fedmix.data import FederatedData, from_arrays
from fedmix.objectives.base import Needs
from fedmix.objectives.scaffold import Scaffold
from fedmix.training.aggregation import Average, Sum
from fedmix.training.draws import choose_clients, draw_plan
from fedmix.training.engines import Engine, Sequential, Vectorised
from tests.synthetic import ENGINES, NAMES, Exactly, one_after_another
from tests.training.engines.test_compiled import compiling

Array = np.ndarray[Any, Any]
SIZES = (7, 1, 12, 4, 9)  # with batches of 4 and two epochs: 4, 2, 6, 2 and 6 steps
SEED, CHOSEN, ROUNDS = 3, 3, 4
WHERE: dict[str, Engine] = {
    "sequential": Sequential(),
    "vectorised": Vectorised(),
    "in turns": Vectorised(chunk=2),
    "compiled": Vectorised(compile=True),
}


def settings(momentum: float = 0.0, decay: float = 0.0) -> Training:
    return Training(
        CHOSEN, epochs=2, batch_size=4, lr=0.2, lr_decay=0.9, momentum=momentum, weight_decay=decay
    )


def data(exactly: bool = True) -> FederatedData:
    rng = np.random.default_rng(0)
    total = sum(SIZES)
    x, y = rng.standard_normal((total, 4)), rng.integers(0, 3, total)
    made = from_arrays(x, y, one_after_another(SIZES), (x[:5], y[:5]), classes=3)
    return replace(made, transform=Exactly(made.transform)) if exactly else made


def net() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, 3).double()


def federation(
    objective: Objective | None = None,
    engine: Engine | None = None,
    training: Training | None = None,
    **more: Any,
) -> Federation:
    objective = objective or Supervised() + Scaffold()
    given = training or settings()
    return Federation(net(), data(), objective, given, engine=engine, seed=SEED, **more)


class Plain:
    """SCAFFOLD of softmax regression by its paper: option II without momentum, and with momentum
    the mean of a client's gradients, each weighted by what it adds to the update.
    """

    def __init__(self, training: Training, samples: FederatedData) -> None:
        self.training, self.samples = training, samples
        start = net()
        self.w = np.column_stack(
            [start.weight.detach().numpy(), start.bias.detach().numpy()]
        )  # its last column is the bias
        self.c, self.own = np.zeros_like(self.w), [np.zeros_like(self.w) for _ in SIZES]
        self.losses: list[float] = []

    def gradient(self, w: Array, rows: Array) -> tuple[Array, float]:
        x = np.column_stack([self.samples.x[rows].astype(np.float64), np.ones(len(rows))])
        y = np.eye(3)[self.samples.y[rows]]
        e = np.exp(x @ w.T)
        p = e / e.sum(1, keepdims=True)
        loss = -(y * np.log(p)).sum(1).mean()
        return (p - y).T @ x / len(rows), float(loss)

    def client(self, k: int, round_: int, lr: float) -> tuple[Array, Array, float]:
        """Its weights, its next c_k, and its mean loss."""
        plan = draw_plan(SEED, round_, k, SIZES[k], self.training, Needs())
        w, v, beta = self.w.copy(), np.zeros_like(self.w), self.training.momentum
        gradients, losses = [], []
        for step in range(plan.steps):
            rows = self.samples.clients[k][plan.rows[step][plan.mask[step]]]
            g, loss = self.gradient(w, rows)
            gradients.append(g)
            losses.append(loss)
            v = beta * v + (g - self.own[k] + self.c)
            w = w - lr * v
        steps = len(gradients)
        if not beta:
            return w, self.own[k] - self.c + (self.w - w) / (steps * lr), float(np.mean(losses))
        counts = [sum(beta**j for j in range(steps - s)) for s in range(steps)]
        mean = sum(n * g for n, g in zip(counts, gradients, strict=True)) / sum(counts)
        return w, np.asarray(mean), float(np.mean(losses))

    def round(self, round_: int) -> None:
        lr = 0.2 * 0.9**round_
        chosen = choose_clients(SEED, round_, len(SIZES), CHOSEN).tolist()
        done = {k: self.client(k, round_, lr) for k in chosen}
        total = sum(SIZES[k] for k in chosen)
        self.w = np.asarray(sum(SIZES[k] / total * w for k, (w, _, _) in done.items()))
        self.losses.append(sum(SIZES[k] / total * loss for k, (_, _, loss) in done.items()))
        self.c = self.c + sum(own - self.own[k] for k, (_, own, _) in done.items()) / len(SIZES)
        for k, (_, own, _) in done.items():
            self.own[k] = own


def one(params: Params) -> Array:
    return np.column_stack([params["weight"].numpy(), params["bias"].numpy()])


@pytest.mark.parametrize(
    ("where", "momentum"),
    [(where, m) for where in WHERE for m in (0.0, 0.6) if (where, m) != ("compiled", 0.0)],
)
def test_rounds_are_those_of_a_plain_loop(where: str, momentum: float) -> None:
    training = settings(momentum)
    ours, plain = federation(engine=WHERE[where], training=training), Plain(training, data())
    with compiling() if where == "compiled" else nullcontext():
        rounds = list(ours.run(ROUNDS))
    taken: set[int] = set()
    for round_ in range(ROUNDS):
        plain.round(round_)
        taken |= set(choose_clients(SEED, round_, len(SIZES), CHOSEN).tolist())
    np.testing.assert_allclose(one(ours.params), plain.w, rtol=0, atol=1e-10)
    assert ours.memory is not None
    np.testing.assert_allclose(one(ours.memory.shared), plain.c, rtol=0, atol=1e-10)
    assert set(ours.memory.kept) == taken
    for k, kept in ours.memory.kept.items():
        np.testing.assert_allclose(one(kept), plain.own[k], rtol=0, atol=1e-10)
    assert [r.local_loss for r in rounds] == pytest.approx(plain.losses, abs=1e-5)


@pytest.mark.parametrize("momentum", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("samples", [1, 5, 37])
def test_reach_is_the_sum_of_all_factors(momentum: float, samples: int) -> None:
    """The gradient of step s is in the velocity of every later step t with a factor of β^(t−s)."""
    training = Training(1, epochs=3, batch_size=4, momentum=momentum)
    steps = 3 * -(-samples // 4)
    brute = sum(momentum ** (t - s) for s in range(steps) for t in range(s, steps))
    assert training.reach(samples) == pytest.approx(brute, rel=1e-12)


def test_the_first_round_is_fedavgs() -> None:
    """Since c and all c_k are zero; the second is not."""
    ours, plain = federation(), federation(Supervised())
    for rounds, same in ((1, True), (2, False)):
        list(ours.run(rounds))
        list(plain.run(rounds))
        assert torch.allclose(ours.params["weight"], plain.params["weight"], atol=1e-12) == same


def test_the_local_loss_is_without_the_term() -> None:
    """With one client of one step, the loss is that of the weights that the round began with."""
    samples = data().with_clients({k: [k] for k in range(len(SIZES))})
    training = Training(len(SIZES), batch_size=4, lr=0.2)
    ours = Federation(net(), samples, Supervised() + Scaffold(), training, seed=SEED)
    plain = Federation(net(), samples, Supervised(), training, seed=SEED)
    for rounds in (1, 2):
        plain.params = ours.params
        [mine], [theirs] = list(ours.run(rounds)), list(plain.run(rounds))
        assert mine.local_loss == pytest.approx(theirs.local_loss, abs=1e-6)


def test_twice_the_bytes() -> None:
    """15 numbers of 4 bytes for each of 3 clients, and as many again for c and Δc_k."""
    [plain] = federation(Supervised()).run(1)
    [ours] = federation().run(1)
    assert (plain.traffic.models_up, plain.traffic.models_down) == (3 * 15 * 4, 3 * 15 * 4)
    assert (ours.traffic.models_up, ours.traffic.models_down) == (2 * 3 * 15 * 4, 2 * 3 * 15 * 4)


def test_memory_is_of_those_that_took_part() -> None:
    run, seen = federation(), set[int]()
    assert run.memory is not None
    assert len(run.memory.kept) == 0
    for done in run.run(3):
        seen |= set(choose_clients(SEED, done.round - 1, len(SIZES), CHOSEN).tolist())
        assert set(run.memory.kept) == seen
    assert run.memory.state()["clients"].shape == (len(seen),)


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
def test_a_stopped_run_goes_on_as_if_it_had_not(engine: Engine) -> None:
    whole, first, second = (federation(engine=engine, training=settings(0.5)) for _ in range(3))
    rounds: list[Round] = list(whole.run(5))
    begun = list(first.run(2))
    second.restore({n: t.clone() for n, t in first.state().items()})
    assert begun + list(second.run(5)) == rounds
    assert all(torch.equal(p, second.params[n]) for n, p in whole.params.items())
    assert all(torch.equal(t, second.state()[n]) for n, t in whole.state().items())


def test_a_state_with_other_clients_or_without_any_is_refused() -> None:
    first, plain = federation(), federation(Supervised())
    list(first.run(1))
    list(plain.run(1))
    saved = first.state()
    with pytest.raises(BadInput, match="what clients keep does not fit; start anew"):
        federation().restore(saved | {"memory.clients": torch.tensor([0, 1, 99])})
    with pytest.raises(BadInput, match="what clients keep does not fit; start anew"):
        federation().restore(saved | {"memory.kept.weight": torch.zeros(2, 3, 4)})
    for objective, state in ((None, plain.state()), (Supervised(), saved)):
        with pytest.raises(BadInput, match="this state belongs to another objective"):
            federation(objective).restore(state)


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
def test_a_round_that_failed_leaves_nothing_behind(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C after the first of its updates, and after the last."""
    whole, broken = federation(engine=engine), federation(engine=engine)
    list(whole.run(3))

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    list(broken.run(1))
    before = {n: t.clone() for n, t in broken.state().items()}
    for at, what in ((Sum, "add"), (Average, "mean")):
        with monkeypatch.context() as patched:
            patched.setattr(at, what, stopped)
            with pytest.raises(KeyboardInterrupt):
                list(broken.run(2))
        assert broken.state().keys() == before.keys()
        assert all(torch.equal(t, before[n]) for n, t in broken.state().items())
    list(broken.run(3))
    assert all(torch.equal(t, broken.state()[n]) for n, t in whole.state().items())


def test_it_is_not_added_to_hidden_states() -> None:
    module = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    with pytest.raises(BadInput, match=r"takes one gradient step a batch; do not add it to Hidden"):
        Federation(module, data(False), Hidden(FedMix(0.1), 1) + Scaffold(), Training(2))


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
def test_it_is_added_to_other_objectives(engine: Engine) -> None:
    """In the first round c and all c_k are zero: as without the term."""
    ours, plain = federation(FedMix(0.1) + Scaffold(), engine), federation(FedMix(0.1), engine)
    list(ours.run(1))
    list(plain.run(1))
    torch.testing.assert_close(ours.params, plain.params, rtol=0, atol=1e-12)
    list(ours.run(3))
    other = federation(FedMix(0.1) + Scaffold())
    list(other.run(3))
    torch.testing.assert_close(ours.params, other.params, rtol=0, atol=1e-10)
