"""Programs: long rounds, clients who take turns in a slot, rounds that use a program again, and
what users bring along.
"""

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import grad
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from fedmix import (
    Diverged,
    Exchange,
    Federation,
    FedMix,
    FedmixError,
    Hidden,
    NaiveMix,
    Objective,
    Supervised,
    Training,
)
from fedmix.core.types import Batch, Params
from fedmix.data import FederatedData, from_arrays
from fedmix.kernels.conv import Conv
from fedmix.models import Model
from fedmix.objectives import batch_mean
from fedmix.training.batches import Received
from fedmix.training.draws import draw_plan
from fedmix.training.engines import Runner, Sequential, Vectorised, Work
from fedmix.training.engines.compiled import (
    Program,
    _build_kernels,
    _no_collection,
    _Quick,
    _write_once,
)
from fedmix.training.engines.slots import pack
from fedmix.training.engines.vectorised import VectorisedRunner
from tests.synthetic import Exactly, one_after_another

TURNS = (9, 2, 7, 1, 6, 3)  # steps with batches of one
WINDOW = 8
LONG = (2 * WINDOW + 3, WINDOW, WINDOW + 1, 2 * WINDOW, 3, WINDOW + 2)


def vectors(sizes: tuple[int, ...] = TURNS) -> FederatedData:
    """Four numbers and one of three classes, in float64."""
    rng = np.random.default_rng(0)
    total = sum(sizes)
    x, y = rng.standard_normal((total, 4)), rng.integers(0, 3, total)
    made = from_arrays(x, y, one_after_another(sizes), (x[:5], y[:5]), classes=3)
    return replace(made, transform=Exactly(made.transform))


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Dropout(0.2), nn.Linear(5, 3)).double()


class Setting:
    """A model, clients of given sizes and an objective, for an engine to run rounds of."""

    def __init__(
        self, objective: Objective, sizes: tuple[int, ...] = TURNS, module: nn.Module | None = None
    ) -> None:
        self.objective, self.sizes = objective, sizes
        self.training = Training(len(sizes), batch_size=1, lr=0.05, momentum=0.9, weight_decay=1e-3)
        federation = Federation(module or net(), vectors(sizes), objective, self.training)
        self.model, self.params, self.resident = (
            federation.model,
            federation.params,
            federation.resident,
        )

    def engine(self, kind: type[Sequential | Vectorised], **how: Any) -> Runner:
        return kind(**how).start(self.model, self.objective, self.training)

    def pool(self, entries: int, seed: int = 0) -> Received:
        rng = torch.Generator().manual_seed(seed)
        x = torch.randn(entries, 4, generator=rng, dtype=torch.float64)
        return Received(
            x, torch.softmax(torch.randn(entries, 3, generator=rng, dtype=torch.float64), -1)
        )

    def work(self, pool: Received | None = None, *, round_: int = 0, lr: float = 0.05) -> Work:
        entries = None if pool is None else np.arange(len(pool.x))
        plans = [
            draw_plan(0, round_, k, n, self.training, self.objective.needs, entries=entries)
            for k, n in enumerate(self.sizes)
        ]
        return Work(round_ + 1, np.arange(len(self.sizes)), plans, self.params, lr, pool)

    def updates(self, engine: Runner, work: Work) -> dict[int, tuple[Params, float]]:
        """Every client's weights and loss."""
        chunks = engine.run_round(self.resident, work)
        return {
            k: ({n: p[i] for n, p in u.params.items()}, float(u.losses[i]))
            for u in chunks
            for i, k in enumerate(u.clients)
        }

    def agrees(self, engine: Runner, work: Work, within: float = 1e-10) -> None:
        """With the reference engine, client by client."""
        wanted, got = self.updates(self.engine(Sequential), work), self.updates(engine, work)
        assert sorted(got) == sorted(wanted) == list(range(len(self.sizes)))
        for k, (params, loss) in wanted.items():
            for n, p in params.items():
                torch.testing.assert_close(got[k][0][n], p, rtol=0, atol=within)
            assert got[k][1] == pytest.approx(loss, abs=1e-5), (
                k
            )  # losses are kept in single precision
            assert any(not torch.equal(p, self.params[n]) for n, p in params.items())


@contextmanager
def compiling() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", (DeprecationWarning, FutureWarning))  # the compiler's own
        yield


# Turns in a slot


@pytest.mark.parametrize("chunk", [1, 2, 3, None])
@pytest.mark.parametrize("objective", [Supervised(), FedMix(0.1)], ids=str)
def test_turns_change_nobody(objective: Objective, chunk: int | None) -> None:
    setting = Setting(objective)
    pool = setting.pool(5) if objective.needs.means else None
    engine = setting.engine(Vectorised, chunk=chunk)
    setting.agrees(engine, setting.work(pool))
    assert isinstance(engine, VectorisedRunner)
    [slots] = engine._programs
    assert slots < len(TURNS)  # with a slot each, half of them would stand idle
    shared = [stay.slot for stay in pack(TURNS, slots)]
    assert len(set(shared)) < len(shared)


def test_turns_of_a_compiled_step() -> None:
    """Also with a module of a user's own, its buffer, and an objective of a user's own; then a
    second round without a trace.
    """
    setting = Setting(Smooth(0.3) + FedMix(0.1), module=Scaled().double())
    engine = setting.engine(Vectorised, chunk=2, compile=True)
    first, second = (
        setting.work(setting.pool(5)),
        setting.work(setting.pool(5, seed=1), round_=1, lr=0.02),
    )
    with compiling():
        setting.agrees(engine, first)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_Quick, "_trace", lambda *_: pytest.fail("it was traced again"))
            setting.agrees(engine, second)


class Attending(nn.Module):
    """Two positions of four numbers each, which `attend(part, positions)` brings together."""

    def __init__(
        self, build: Callable[[], nn.Module], attend: Callable[[Any, Tensor], Tensor]
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.part, self.attend, self.last = (
            nn.Linear(2, 4),
            build(),
            attend,
            nn.Linear(4, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        positions = self.first(x.view(-1, 2, 2)).transpose(0, 1)
        out: Tensor = self.last(self.attend(self.part, positions).mean(0))
        return out


@pytest.mark.parametrize(
    ("build", "attend"),
    [
        (
            lambda: nn.Linear(4, 4),
            lambda m, x: F.linear(x, m.weight).tanh(),
        ),  # the least that it takes
        (lambda: nn.MultiheadAttention(4, 2), lambda m, x: m(x, x, x, need_weights=False)[0]),
    ],
    ids=["linear", "attention"],
)
def test_a_compiled_step_of_fedmix_with_attention(
    build: Callable[[], nn.Module], attend: Callable[[Any, Tensor], Tensor]
) -> None:
    """Its derivative holds zeros that take no memory; compiled code that read them ended the whole
    process.
    """
    setting = Setting(FedMix(0.1), module=Attending(build, attend).double())
    with compiling():
        setting.agrees(
            setting.engine(Vectorised, chunk=2, compile=True), setting.work(setting.pool(5))
        )


# Rounds of many steps


@pytest.fixture
def _short_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight steps instead of 64, so that few are many."""
    for module in ("compiled", "vectorised"):
        monkeypatch.setattr(f"fedmix.training.engines.{module}.WINDOW", WINDOW)


@pytest.mark.usefixtures("_short_window")
@pytest.mark.parametrize("chunk", [None, 2, 1])
def test_rounds_longer_than_a_window(chunk: int | None) -> None:
    """Clients that end before, at and after a window's last step, and amid the third window."""
    setting = Setting(Supervised(), LONG)
    setting.agrees(setting.engine(Vectorised, chunk=chunk), setting.work())


@pytest.mark.usefixtures("_short_window")
@pytest.mark.parametrize("steps", [WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW])
def test_one_client_at_the_edge_of_a_window(steps: int) -> None:
    setting = Setting(Supervised(), (steps,))
    setting.agrees(setting.engine(Vectorised), setting.work())


@pytest.mark.usefixtures("_short_window")
def test_no_step_is_taken_twice_or_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    setting, real, taken = Setting(Supervised(), LONG), Program.run, list[int]()

    def noting(self: Program, steps: int) -> None:
        taken.append(steps)
        real(self, steps)

    monkeypatch.setattr(Program, "run", noting)
    list(setting.engine(Vectorised, chunk=1).run_round(setting.resident, setting.work()))
    assert sum(taken) == sum(LONG)
    assert max(taken) <= WINDOW


# Programs that are used again


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of slots for which a program was built."""
    real, slots = Program.__init__, list[int]()

    def noting(self: Program, *args: Any, **kwargs: Any) -> None:
        real(self, *args, **kwargs)
        slots.append(self.state.losses.shape[1])

    monkeypatch.setattr(Program, "__init__", noting)
    return slots


def test_another_pool_of_the_same_shape_needs_no_new_program(built: list[int]) -> None:
    setting = Setting(FedMix(0.1))
    engine = setting.engine(Vectorised, chunk=2)
    for round_ in range(3):
        setting.agrees(
            engine,
            setting.work(setting.pool(5, seed=round_), round_=round_, lr=0.05 / (1 + round_)),
        )
    assert built == [2]


def test_a_pool_of_another_shape_needs_one(built: list[int]) -> None:
    setting = Setting(FedMix(0.1))
    engine = setting.engine(Vectorised, chunk=2)
    for round_, entries in enumerate((5, 7, 7, 4)):
        setting.agrees(engine, setting.work(setting.pool(entries, seed=round_), round_=round_))
    assert built == [2, 2, 2]


def test_other_data_needs_one(built: list[int]) -> None:
    """Resident anew, as after a move to another device."""
    setting = Setting(Supervised())
    engine = setting.engine(Vectorised, chunk=2)
    setting.agrees(engine, setting.work())
    setting.resident = replace(setting.resident, x=setting.resident.x.flip(0))
    setting.agrees(engine, setting.work())
    assert built == [2, 2]


def test_new_rows_for_a_client_do_not(built: list[int]) -> None:
    """Changed clients name other rows of the same arrays."""

    def changes(round_: int) -> dict[int, list[int]]:
        return {0: [9, 10, 11, 12, 13, 14, 15, 16, 17]} if round_ else {}

    def run(engine: Any) -> Params:
        federation = Federation(
            net(),
            vectors(),
            Supervised(),
            Training(6, batch_size=1, lr=0.1),
            engine=engine,
            changes=changes,
        )
        list(federation.run(2))
        return federation.params

    slow = run(Sequential())
    assert not built
    torch.testing.assert_close(run(Vectorised()), slow, rtol=0, atol=1e-10)
    assert len(built) == 1


@pytest.mark.parametrize(
    "objective", [Hidden(FedMix(0.1), 2), Hidden(NaiveMix(0.1, per="sample"), 1)], ids=str
)
def test_hidden_states_change_every_round(objective: Objective, built: list[int]) -> None:
    """Their means come from the round's weights: two rounds agree only if the second uses the new
    ones.
    """

    def run(engine: Any) -> Params:
        training = Training(6, batch_size=2, lr=0.1)
        federation = Federation(
            net(), vectors(), objective, training, exchange=Exchange(m=1), engine=engine
        )
        list(federation.run(2))
        return federation.params

    torch.testing.assert_close(run(Vectorised()), run(Sequential()), rtol=0, atol=1e-10)
    assert len(built) == 1


# What users bring along


class Scaled(nn.Module):
    """Not a Sequential, with a buffer, and with layers whose derivative torch cannot trace."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = nn.Linear(4, 6), nn.Linear(6, 3)
        self.norms = nn.Sequential(nn.GroupNorm(2, 6), nn.LayerNorm(6))
        self.register_buffer("scale", torch.tensor([1.0, 0.5, -2.0, 1.5]))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.two(torch.tanh(self.norms(self.one(x * self.scale))))
        return out


@dataclass(frozen=True)
class Smooth(Objective):
    """Labels smoothed towards the uniform ones, written by a user."""

    by: float

    def __call__(self, model: Model, params: Params, anchor: Params, batch: Batch) -> Tensor:  # noqa: ARG002
        y = (1 - self.by) * batch.y + self.by / batch.y.shape[-1]
        return batch_mean(model.loss.value(model(params, batch.x, batch.key), y), batch.mask)


def test_a_module_with_a_buffer_and_an_objective_of_ones_own() -> None:
    setting = Setting(Smooth(0.3), module=Scaled().double())
    setting.agrees(setting.engine(Vectorised, chunk=2), setting.work())


# What comes out


def test_updates_are_copies() -> None:
    """What a client's update was when it came out is what it is at the end, though others went on
    in its slot.
    """
    setting = Setting(Supervised())
    engine = setting.engine(Vectorised, chunk=2)
    assert isinstance(engine, VectorisedRunner)
    kept: list[tuple[list[Tensor], list[Tensor]]] = []
    for update in engine.run_round(setting.resident, setting.work()):
        mine = [*update.params.values(), update.losses]
        kept.append((mine, [t.clone() for t in mine]))
    for program in engine._programs.values():
        for written in program.state.written:
            written.zero_()
    assert len(kept) > 2
    assert all(torch.equal(a, b) for now, then in kept for a, b in zip(now, then, strict=True))


def test_the_rounds_weights_are_left_alone() -> None:
    setting = Setting(Supervised())
    before = {n: p.clone() for n, p in setting.params.items()}
    list(setting.engine(Vectorised, chunk=2).run_round(setting.resident, setting.work()))
    assert all(torch.equal(p, before[n]) for n, p in setting.params.items())


class Explodes(nn.Module):
    """Returns NaN for an input whose first number is 100 or more."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x) + torch.where(x[:, :1] >= 100, torch.nan, 0.0)
        return out


@pytest.mark.parametrize("chunk", [1, 2])
@pytest.mark.parametrize("client", range(len(TURNS)))
def test_a_failure_in_a_shared_slot_names_its_client(client: int, chunk: int) -> None:
    """Also where others had the slot before it, or have it after."""
    setting = Setting(Supervised(), module=Explodes().double())
    x = setting.resident.x.clone()
    x[int(setting.resident.data.clients[client][-1]), 0] = 100
    resident, work = replace(setting.resident, x=x), setting.work()
    step = int(np.flatnonzero(work.plans[client].rows[:, 0] == TURNS[client] - 1)[0])
    with pytest.raises(
        Diverged, match=r"the loss is NaN or infinite; its input was x \(1, 4\) in \[.*, 100\]"
    ) as caught:
        list(setting.engine(Vectorised, chunk=chunk).run_round(resident, work))
    assert (caught.value.round, caught.value.client, caught.value.step) == (1, client, step)


def test_one_client_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is tried for fewer and fewer clients; when one is too many, that is said."""
    tried = list[int]()

    def full(self: Program, _: int) -> None:
        tried.append(self.state.losses.shape[1])
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(Program, "run", full)
    setting = Setting(Supervised(), (4, 4, 4, 4, 4))
    with pytest.raises(
        FedmixError,
        match=r"one client does not fit into the device's memory; lower training\.batch_size",
    ) as caught:
        list(setting.engine(Vectorised).run_round(setting.resident, setting.work()))
    assert tried[0] == 5
    assert tried[-1] == 1
    assert tried == sorted(tried, reverse=True)
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)


def test_memory_that_runs_out_in_mid_round_loses_and_repeats_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Clients that were done stay done; the others begin again, fewer at a time."""
    setting, real, calls = Setting(Supervised()), Program.run, list[int]()

    def once(self: Program, steps: int) -> None:
        calls.append(steps)
        if len(calls) == 4:
            raise torch.OutOfMemoryError("no memory")
        real(self, steps)

    wanted = setting.updates(setting.engine(Sequential), setting.work())
    monkeypatch.setattr(Program, "run", once)
    came = list[int]()
    for update in setting.engine(Vectorised, chunk=3).run_round(setting.resident, setting.work()):
        came += update.clients
        for i, k in enumerate(update.clients):
            for n, p in update.params.items():
                torch.testing.assert_close(p[i], wanted[k][0][n], rtol=0, atol=1e-10)
    assert sorted(came) == list(range(len(TURNS)))
    assert len(calls) > 4


@pytest.mark.parametrize("on", [True, False])
def test_the_garbage_collector_is_as_it_was_after_compiling(on: bool) -> None:
    """Also after a failure, and where somebody else had turned it off."""

    def fails() -> None:
        with _no_collection():
            seen.append(gc.isenabled())
            raise ZeroDivisionError

    seen: list[bool] = []
    (gc.enable if on else gc.disable)()
    try:
        with pytest.raises(ZeroDivisionError):
            fails()
        assert [*seen, gc.isenabled()] == [False, on]
    finally:
        gc.enable()


def test_kernels_are_built_before_the_first_step() -> None:
    """Each call of our operators in a traced step is made once, with tensors of its layout."""
    x, w = torch.zeros(2, 1, 5, 5, 4), torch.zeros(2, 6, 4, 3, 3).movedim(2, -1)
    made: list[Any] = []

    class Ours:
        def __str__(self) -> str:
            return "fedmix.ours"

        def __call__(self, *args: Any) -> None:
            made.append([(a.shape, a.stride()) if isinstance(a, Tensor) else a for a in args])

    traced = make_fx(
        lambda x, w: torch.ops.fedmix.conv(x.relu(), w, w[:, :, 0, 0, 0], 1, 1, "tf32"),
        tracing_mode="fake",
    )(x, w)
    assert [ours for ours in traced.graph.nodes if str(ours.target) == "fedmix.conv.default"]
    for node in traced.graph.nodes:
        if str(node.target).startswith("fedmix."):
            node.target = Ours()
    _build_kernels(traced.graph)
    assert made == [
        [(x.shape, x.stride()), (w.shape, w.stride()), ((2, 6), (6 * 36, 36)), 1, 1, "tf32"]
    ]


def test_what_two_operators_read_is_written_once() -> None:
    """The result of relu by a convolution and the gradient of its filters, y's gradient by both of
    its own, relu's by one.
    """

    def step(x: Tensor, w: Tensor, v: Tensor, b: Tensor) -> Tensor:
        def loss(w: Tensor, v: Tensor) -> Tensor:
            conv: Callable[..., Tensor] = Conv.apply
            return conv(torch.relu(conv(x, w, b, 0, 1, "tf32")), v, b, 0, 1, "tf32").square().sum()

        return torch.cat(grad(loss, argnums=(0, 1))(w, v))

    given = (
        torch.randn(3, 4, 4, 2),
        torch.randn(2, 3, 3, 2),
        torch.randn(2, 3, 3, 2),
        torch.zeros(2),
    )
    traced = make_fx(step, tracing_mode="fake")(*given)
    _write_once(traced)
    written = [node for node in traced.graph.nodes if "force_stride_order" in str(node.target)]
    read = [
        _base(a)
        for node in traced.graph.nodes
        if str(node.target).startswith("fedmix.")
        for a in node.all_input_nodes
    ]
    assert sorted(read.count(node) for node in written) == [1, 2, 2]
    assert {source.op for source in read if source not in written} == {"placeholder"}
    torch.testing.assert_close(traced(*given), step(*given))


def _base(node: Node) -> Node:
    while node.target in (
        torch.ops.aten.view.default,
        torch.ops.aten.unsqueeze.default,
        torch.ops.aten.select.int,
    ):
        node = node.all_input_nodes[0]
    return node


def test_a_client_that_diverged_before_memory_ran_out_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In three slots, client 4 is done first and client 2 next.

    Their updates are out, and their plans are not run again.
    """
    setting, real, calls = (
        Setting(Supervised(), module=Explodes().double()),
        Program.run,
        list[int](),
    )
    x = setting.resident.x.clone()
    x[int(setting.resident.data.clients[4][0]), 0] = 100

    def twice(self: Program, steps: int) -> None:
        calls.append(steps)
        if len(calls) == 3:
            raise torch.OutOfMemoryError("no memory")
        real(self, steps)

    monkeypatch.setattr(Program, "run", twice)
    updates = iter(
        setting.engine(Vectorised, chunk=3).run_round(
            replace(setting.resident, x=x), setting.work()
        )
    )
    assert [next(updates).clients, next(updates).clients] == [[4], [2]]
    with pytest.raises(Diverged) as caught:
        next(updates)
    assert caught.value.client == 4
