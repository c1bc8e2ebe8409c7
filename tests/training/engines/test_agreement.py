"""Both engines give the same round: every objective on every model, ragged clients, dropout and
augmentation on.
"""

import errno
import gc
import warnings
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule

from fedmix import (
    Exchange,
    Federation,
    FedMix,
    GlobalMix,
    Hidden,
    LocalMix,
    NaiveMix,
    Objective,
    Proximal,
    Supervised,
    Training,
)
from fedmix.core.types import Batch, Params
from fedmix.kernels.precision import Precision, arithmetic
from fedmix.models import Model, initialised
from fedmix.objectives.base import Function, Phase
from fedmix.training.draws import draw_plan
from fedmix.training.engines import Engine, Sequential, Vectorised, Work, compiled
from fedmix.training.engines.compiled import Program, State
from fedmix.training.engines.vectorised import VectorisedRunner
from tests.synthetic import ENGINES, NAMES, RAGGED, SHAPES, Exactly, federated

OBJECTIVES: dict[str, Objective] = {
    "supervised": Supervised(),
    "localmix": LocalMix(alpha=1.0),
    "globalmix": GlobalMix(alpha=1.0),
    "naivemix": NaiveMix(0.1),
    "naivemix-per-sample": NaiveMix(0.1, per="sample"),
    "fedmix": FedMix(0.1),
    "fedmix-per-sample": FedMix(0.1, per="sample"),
    "fedmix-algorithm": FedMix(0.1, scale="algorithm"),
    "fedmix-logits": FedMix(0.1, expand="logits"),
    "hidden-fedmix": Hidden(FedMix(0.1), layer=1),
    "hidden-naivemix": Hidden(NaiveMix(0.1), layer=2),
    "hidden-localmix": Hidden(LocalMix(alpha=1.0), layer=1),
}
CASES = [
    pytest.param(kind, o, id=f"{kind}-{name}") for kind in SHAPES for name, o in OBJECTIVES.items()
]
CASES += [
    pytest.param("digits_cnn", o + Proximal(0.1), id=f"digits_cnn-{name}+prox")
    for name, o in OBJECTIVES.items()
]
SMALL = (
    7,
    1,
    12,
)  # with batches of 4: a batch that is not full, a single sample, and only full batches
SEVERAL = (12, 11, 9, 1, 5)  # 6, 6, 6, 2 and 4 steps, which fill four slots


def round_of(
    kind: str,
    objective: Objective,
    engine: Engine,
    *,
    exactly: bool = False,
    seed: int = 3,
    sizes: tuple[int, ...] = SMALL,
) -> Params:
    training = Training(
        clients_per_round=len(sizes),
        epochs=2,
        batch_size=4,
        lr=0.01,
        momentum=0.9,
        weight_decay=1e-4,
    )
    exchange = Exchange(m=1) if objective.needs.means else None
    module, data = initialised(SHAPES[kind][0], seed=1), federated(kind, sizes, seed=seed)
    if exactly:
        module, data = module.double(), replace(data, transform=Exactly(data.transform))
    federation = Federation(
        module, data, objective, training, exchange=exchange, engine=engine, seed=seed
    )
    list(federation.run(1))
    return federation.params


def apart(a: Params, b: Params) -> float:
    return max(float((a[n] - b[n]).abs().max()) for n in a)


@pytest.mark.parametrize(
    "objective",
    [FedMix(0.1, per="sample"), LocalMix(alpha=1.0)],
    ids=["fedmix-per-sample", "localmix"],
)
def test_a_batch_size_above_everyones_samples_is_their_whole_data(objective: Objective) -> None:
    """A thousand, to say "all", must not make a thousand rows; before round 2 the largest client
    grows.
    """
    given = federated("digits_cnn", SMALL, seed=3)
    data = replace(given, transform=Exactly(given.transform))

    def params(engine: Engine) -> tuple[Params, list[int]]:
        module, training = (
            initialised(SHAPES["digits_cnn"][0], seed=1).double(),
            Training(3, epochs=2, batch_size=1000, lr=0.01),
        )
        federation = Federation(
            module,
            data,
            objective,
            training,
            engine=engine,
            changes=lambda round_: {1: np.arange(15)} if round_ == 1 else {},
        )
        widths = []
        with patch.object(
            federation.runner, "run_round", wraps=federation.runner.run_round
        ) as running:
            for _ in federation.run(2):
                widths += [plan.rows.shape[1] for plan in running.call_args.args[1].plans]
        return federation.params, widths

    (one, widths), (other, _) = params(Vectorised()), params(Sequential())
    assert widths == [12] * 3 + [15] * 3
    assert apart(one, other) < 1e-12


@pytest.mark.parametrize(("kind", "objective"), CASES)
def test_engines_agree(kind: str, objective: Objective) -> None:
    """In float64, so that a disagreement is a mistake and never a rounding error that crossed a
    kink.
    """
    start = initialised(SHAPES[kind][0], seed=1).state_dict()
    slow, fast = (round_of(kind, objective, engine, exactly=True) for engine in ENGINES)
    assert all(p.dtype == torch.float64 for p in (*slow.values(), *fast.values()))
    assert apart(slow, start) > 1e-3  # the round moved the weights
    assert apart(slow, fast) < 1e-10


class Asking(Supervised):
    """A plain step, then one whose size says whether its code sees a gradient."""

    def phases(self) -> tuple[Phase, ...]:
        return Phase(Supervised()), Phase(Function(self.second))

    @staticmethod
    def second(model: Model, params: Params, anchor: Params, batch: Batch) -> Tensor:
        factor = 1.0 if any(p.requires_grad for p in params.values()) else 0.5
        return factor * Supervised()(model, params, anchor, batch)


def test_a_second_phase_that_asks_for_gradients_takes_the_step_once() -> None:
    slow, fast = (round_of("digits_cnn", Asking(), engine, exactly=True) for engine in ENGINES)
    assert apart(slow, fast) < 1e-10


@pytest.mark.parametrize("name", ["supervised", "globalmix", "fedmix", "hidden-fedmix"])
@pytest.mark.parametrize("kind", SHAPES)
def test_engines_agree_in_single_precision(kind: str, name: str) -> None:
    """The median of three seeds: now and then rounding decides a near tie in a max-pool, and that
    run parts by more.
    """
    gaps = [
        apart(*(round_of(kind, OBJECTIVES[name], engine, seed=seed) for engine in ENGINES))
        for seed in (3, 4, 5)
    ]
    assert sorted(gaps)[1] < 1e-5


def test_the_compiled_step_is_the_same_step() -> None:
    """Clients of 8, 2 and 4 steps: in the compiled stack of three, one that is done waits masked
    until half of them are.
    """
    plain = round_of("digits_cnn", FedMix(0.1), Vectorised(), exactly=True, sizes=(16, 3, 7))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", (DeprecationWarning, FutureWarning))  # the compiler's own
        fast = round_of(
            "digits_cnn", FedMix(0.1), Vectorised(compile=True), exactly=True, sizes=(16, 3, 7)
        )
    assert apart(plain, fast) < 1e-10


def test_without_a_compiler_it_goes_on_and_says_so_once() -> None:
    plain = round_of("digits_cnn", Supervised(), Vectorised())

    without = torch._inductor.config.patch(
        {"cpp.cxx": ("no-such-compiler",), "force_disable_caches": True}
    )
    with (
        without,
        pytest.warns(
            UserWarning, match=r"could not be compiled \(.*\); going on without, more slowly"
        ) as said,
    ):
        slow = round_of("digits_cnn", Supervised(), Vectorised(compile=True))
    assert len([warning for warning in said if issubclass(warning.category, UserWarning)]) == 1
    assert apart(plain, slow) < 1e-6


def test_without_room_for_compiled_code_it_goes_on() -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with (
        patch.object(compiled, "_compile", full),
        pytest.warns(
            UserWarning,
            match=r"could not be compiled \(.*No space left on device\); going on without",
        ),
    ):
        slow = round_of("digits_cnn", Supervised(), Vectorised(compile=True))
    assert apart(round_of("digits_cnn", Supervised(), Vectorised()), slow) < 1e-6


def test_compiled_code_that_is_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = round_of("digits_cnn", Supervised(), Vectorised())

    def wrong(traced: GraphModule, _: list[Tensor]) -> Callable[..., None]:
        def step(*leaves: Tensor) -> None:
            old = leaves[0].clone()
            traced(*leaves)
            leaves[0].copy_(
                old - (leaves[0] - old).flip(-1)
            )  # the first filters' step, mirrored and uphill

        return step

    monkeypatch.setattr(compiled, "_compile", wrong)
    with pytest.warns(
        UserWarning,
        match="compiled local step does not do what the plain one does.*; going on without",
    ):
        slow = round_of("digits_cnn", Supervised(), Vectorised(compile=True))
    assert apart(plain, slow) < 1e-6


@pytest.mark.parametrize(("precision", "noise", "wrong"), [
    ("tf32", 1e-6, False), ("tf32", 1e-3, True), ("bf16", 1e-3, False), ("bf16", 1e-2, True),
])  # fmt: skip
def test_a_gradient_that_would_be_zero_may_be_rounding(
    precision: Precision, noise: float, wrong: bool
) -> None:
    """Of two weights the plain step moves one, by a norm of 2; compiled code moves the other by
    `noise` of that.
    """
    unused: Any = None
    params = {"moves": torch.zeros(4), "stays": torch.zeros(4)}
    state = State(
        params,
        {},
        torch.zeros(1, 1),
        torch.zeros(1),
        {},
        unused,
        unused,
        None,
        unused,
        unused,
        unused,
    )
    before = [t.clone() for t in state.written]
    params["moves"] -= 1
    params["stays"] += noise

    def step(state: State) -> None:
        state.params["moves"].sub_(1)

    with arithmetic(precision), pytest.raises(compiled._Wrong) if wrong else nullcontext():
        compiled._compare(step, state, before, [])


def test_a_program_goes_with_the_last_who_needs_it() -> None:
    """No reference leads back to it: its memory is free at once, and rounds need not wait for the
    collector.
    """
    federation = Federation(
        initialised(SHAPES["digits_cnn"][0], seed=1),
        federated("digits_cnn"),
        Supervised(),
        Training(3),
    )
    list(federation.run(1))
    assert isinstance(federation.runner, VectorisedRunner)
    programs = [weakref.ref(program) for program in federation.runner._programs.values()]
    gc.disable()
    try:
        federation.runner.forget()
        assert programs
        assert [program() for program in programs] == [None] * len(programs)
    finally:
        gc.enable()


@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_chunks_change_nothing(chunk: int) -> None:
    whole = round_of("digits_cnn", FedMix(0.1), Vectorised(), sizes=SEVERAL)
    assert (
        apart(whole, round_of("digits_cnn", FedMix(0.1), Vectorised(chunk=chunk), sizes=SEVERAL))
        < 1e-6
    )


def test_memory_that_runs_out_halves_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = round_of("digits_cnn", FedMix(0.1), Vectorised(), sizes=SEVERAL)
    real, slots = Program.run, []

    def short_of_memory(self: Program, steps: int) -> None:
        slots.append(len(self.state.losses[0]))
        if slots[-1] > 2:
            raise torch.OutOfMemoryError("no memory")
        real(self, steps)

    monkeypatch.setattr(Program, "run", short_of_memory)
    assert apart(whole, round_of("digits_cnn", FedMix(0.1), Vectorised(), sizes=SEVERAL)) < 1e-6
    assert slots[:2] == [4, 2]
    assert set(slots[1:]) == {2}


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
@pytest.mark.parametrize("name", ["supervised", "fedmix", "localmix", "hidden-naivemix"])
def test_clients_do_not_touch_each_other(engine: Engine, name: str) -> None:
    """Other data for client 2 changes client 2's update and nobody else's, to the bit."""
    objective, kind = OBJECTIVES[name], "digits_cnn"
    training = Training(len(RAGGED), epochs=1, batch_size=10, lr=0.05, momentum=0.9)

    def updates(marked: bool) -> dict[int, Params]:
        data = federated(kind)
        if marked:
            x = data.x.copy()
            x[data.clients[2]] = 255 - x[data.clients[2]]
            data = type(data)(**{**vars(data), "x": x})
        federation = Federation(initialised(SHAPES[kind][0], 1), data, objective, training, seed=3)
        clients = np.arange(len(RAGGED))
        rng = torch.Generator().manual_seed(0)
        shape = (8, 8) if not objective.needs.layer else ()
        pool_x = torch.randn(4, *((1, *shape) if shape else (512,)), generator=rng)
        from fedmix.training.batches import Received

        pool = Received(pool_x, torch.full((4, 10), 0.1)) if objective.needs.means else None
        plans = [
            draw_plan(
                3,
                0,
                k,
                n,
                training,
                objective.needs,
                entries=np.arange(4),
                everyone=sum(RAGGED),
                pad=2,
            )
            for k, n in enumerate(RAGGED)
        ]
        work = Work(1, clients, plans, federation.params, 0.05, pool)
        runner = engine.start(federation.model, objective, training)
        chunks = runner.run_round(federation.resident, work)
        return {
            k: {n: p[i] for n, p in u.params.items()}
            for u in chunks
            for i, k in enumerate(u.clients)
        }

    before, after = updates(False), updates(True)
    assert apart(before[2], after[2]) > 1e-4
    for k in (0, 1, 3, 4):
        assert apart(before[k], after[k]) == 0.0, k


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
def test_a_batch_that_nobody_fills_trains_as_one_that_the_largest_fills(engine: Engine) -> None:
    """One epoch: the draws are the same, so the weights are, to the bit."""

    def trained(batch_size: int) -> list[Any]:
        settings = Training(clients_per_round=3, batch_size=batch_size, lr=0.1)
        run = Federation(
            initialised(SHAPES["digits_cnn"][0], 0), federated("digits_cnn"), LocalMix(alpha=1.0),
            settings, engine=engine
        )  # fmt: skip
        list(run.run(2))
        return [p.tolist() for p in run.params.values()]

    assert trained(10**12) == trained(max(RAGGED))
