"""Compiled local steps of several clients; on a GPU also captured as a CUDA graph.

A step of small clients is many small kernels, and launching them one by one dominates the time.
Tracing turns the step (`vmap`, gradients, objective and all) into a flat list of tensor operations,
the compiler fuses these into few kernels, and a CUDA graph launches them all at once. Both need
tensors that stay at the same address: the `State`.
"""

import gc
import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fedmix.core.errors import BadInput, FedmixError, FedmixWarning, first_line
from fedmix.core.types import Batch, Params, each_field
from fedmix.kernels.precision import Precision, arithmetic, current
from fedmix.kernels.products import leave_long_products, one_tile
from fedmix.models.functional import Model
from fedmix.objectives.base import Phase
from fedmix.training.batches import PlanOnDevice, Received, Resident
from fedmix.training.engines.bf16 import keep_rounded, misrounded
from fedmix.training.engines.eager import AsksForGradients, Stack, Watch, stepped
from fedmix.training.engines.kept_code import keep, probe_once, trim
from fedmix.training.engines.slots import Stay
from fedmix.training.known import Known
from fedmix.training.local_step import local_step, rest
from fedmix.training.settings import Training

log = logging.getLogger(__name__)
WINDOW = 64  # number of steps whose draws and losses a program holds


class State(NamedTuple):
    """All tensors that a step reads and writes.

    They are the weights and momentum of the clients in the slots, the round's weights, learning
    rate, pool and facts, the draws and losses of WINDOW steps, and the training data. `at` is the
    position in that window.
    """

    params: Params
    velocity: Params
    losses: Tensor
    at: Tensor
    anchor: Params
    lr: Tensor
    draws: PlanOnDevice
    pool: Received | None
    known: Known
    x: Tensor
    y: Tensor

    @property
    def written(self) -> list[Tensor]:
        """Tensors that a step writes."""
        return [*self.params.values(), *self.velocity.values(), self.losses, self.at]


class Program:
    """Local steps of the clients in a fixed number of slots on one device.

    Clients may start and finish between steps.

    Args:
        model: The model.
        phases: The gradient steps for each batch.
        training: The settings of training.
        data: The training data on the device.
        anchor: The weights, of which the shapes matter.
        draws: Draws, of which the shapes matter.
        pool: Received means, of which the shapes matter.
        known: Facts about clients, of which the shapes matter.
        compile: Whether to compile the step.
        precision: How a GPU multiplies.
    """

    def __init__(
        self,
        model: Model,
        phases: tuple[Phase, ...],
        training: Training,
        data: Resident,
        anchor: Params,
        draws: PlanOnDevice,
        pool: Received | None,
        known: Known,
        *,
        compile: bool,
        precision: Precision,
    ) -> None:
        slots, device = draws.rows.shape[1], data.device
        self.model, self.phases, self.training, self.data, self.precision = (
            model,
            phases,
            training,
            data,
            precision,
        )
        params = {n: _room(p, slots) for n, p in anchor.items()}
        self.state = State(
            params,
            rest(params, training),
            losses=torch.zeros(WINDOW, slots, device=device),
            at=torch.zeros(1, dtype=torch.int64, device=device),
            anchor={n: torch.empty_like(p) for n, p in anchor.items()},
            lr=torch.zeros((), device=device, dtype=next(iter(anchor.values())).dtype),
            draws=each_field(lambda f: f.new_zeros(WINDOW, *f.shape[1:]), draws),
            pool=None if pool is None else Received(*(torch.empty_like(t) for t in pool)),
            known=_room_for(known, slots),
            x=data.x,
            y=data.y,
        )
        self._quick = _Quick() if compile else None
        self._spare = dict[str, Tensor]()  # made when a step runs without a compiler
        self._stacks = not self.state.at.is_cuda  # whether losses alone are stacked

    def fits(self, data: Resident, draws: PlanOnDevice, pool: Received | None) -> bool:
        """Whether it can run with this data, pool and size of batches."""
        mine = self.state.pool
        same = (mine is None and pool is None) or (
            mine and pool and [t.shape for t in mine] == [t.shape for t in pool]
        )
        wide = draws.rows.shape[1:] == self.state.draws.rows.shape[1:]
        return data.x is self.state.x and data.y is self.state.y and wide and bool(same)

    def begin(self, anchor: Params, lr: float, pool: Received | None, known: Known) -> None:
        """Load a round's weights, learning rate and pool, and what the server shares."""
        for n, p in anchor.items():
            self.state.anchor[n].copy_(p)
        self.state.lr.copy_(torch.tensor(lr, dtype=torch.float64))
        if self.state.pool is not None and pool is not None:
            for mine, new in zip(self.state.pool, pool, strict=True):
                mine.copy_(new)
        for name, shared in (known.shared or {}).items():
            (self.state.known.shared or {})[name].copy_(shared)

    def meet(self, known: Known, stays: list[Stay]) -> None:
        """Load the facts about clients that start, each into its slot."""
        slots = [stay.slot for stay in stays]
        where = torch.tensor(slots, dtype=torch.int64, device=self.data.device)
        new = known.of([stay.client for stay in stays])
        for mine, theirs in zip(_leaves(self.state.known), _leaves(new), strict=True):
            mine[where] = theirs

    def start(self, slots: list[int]) -> None:
        """Reset the weights and momentum of these slots for clients that start."""
        where = torch.tensor(slots, device=self.data.device)
        for n, p in self.state.params.items():
            p[where] = self.state.anchor[n]
        for v in self.state.velocity.values():
            v[where] = 0

    def load(self, draws: PlanOnDevice) -> None:
        """Load the draws (steps first) of the next steps, at most WINDOW."""
        for mine, new in zip(self.state.draws, draws, strict=True):
            if mine is not None and new is not None:
                mine[: len(new)].copy_(new)
        self.state.at.zero_()

    def run(self, steps: int) -> None:
        """Run this many steps."""
        with torch.no_grad(), arithmetic(self.precision):
            if self._quick is not None and self._quick.ready(self._step, self.state):
                self._quick(steps)
                return
            for _ in range(steps):
                if self._stacks:
                    self._eager_step(self.state)
                else:
                    self._step(self.state)

    def _batch(self, state: State) -> Batch:
        draws = each_field(lambda f: f.index_select(0, state.at)[0], state.draws)
        batch = replace(self.data, x=state.x, y=state.y).batch(draws, state.pool)
        return state.known._replace(shared=None).into(batch)

    def _eager_step(self, state: State) -> None:
        before: list[Tensor] = []
        watch: AbstractContextManager[Any] = nullcontext()
        if not self._spare:  # the first step
            self._spare = {n: torch.empty_like(p) for n, p in state.params.items()}
            before, watch = [t.clone() for t in state.written], Watch()
        stack = Stack(state.params, state.velocity, self._spare)
        batch = self._batch(state)._replace(shared=state.known.shared)
        try:
            with _told(), watch:
                losses = stepped(
                    self.model, self.phases, self.training, stack, state.anchor, batch, state.lr
                )
        except AsksForGradients:  # maybe after a phase
            self._stacks = False
            _restore(state, before)
            self._step(state)
            return
        state.losses.index_copy_(0, state.at, losses[None].to(state.losses.dtype))
        state.at.add_(1)

    def _step(self, state: State) -> None:
        """Make a step of operations alone, as they are traced."""
        params, velocity, losses = self._step_of_all(state, self._batch(state))
        for mine, new in ((state.params, params), (state.velocity, velocity)):
            for n, t in new.items():
                mine[n].copy_(t)
        state.losses.index_copy_(0, state.at, losses[None].to(state.losses.dtype))
        state.at.add_(1)

    def _step_of_all(self, state: State, batch: Batch) -> tuple[Params, Params, Tensor]:
        def one(params: Params, velocity: Params, batch: Batch) -> tuple[Params, Params, Tensor]:
            batch = batch._replace(shared=state.known.shared)
            return local_step(
                self.model,
                self.phases,
                self.training,
                params,
                velocity,
                state.anchor,
                batch,
                state.lr,
            )

        if len(batch.x) == 1:  # nothing to stack, and the plain step is faster than its vmap
            alone = one(
                _only(state.params), _only(state.velocity), each_field(lambda f: f[0], batch)
            )
            return _stacked(alone[0]), _stacked(alone[1]), alone[2][None]
        by_client = each_field(lambda _: 0, batch)
        with _told():
            return vmap(one, in_dims=(0, 0, by_client))(state.params, state.velocity, batch)


@contextmanager
def _told() -> Iterator[None]:
    """Turn torch's error for code that vmap cannot run into a BadInput that says what to do."""
    try:
        yield
    except RuntimeError as error:
        asked = ("calling .item()", "data-dependent control flow", "doesn't have storage")
        if any(said in str(error) for said in asked):
            raise BadInput(
                "the model or the objective asks for the value of a tensor, by `if`, .item() or "
                ".numpy(), and all clients step at once; use torch.where, or engine=Sequential()"
            ) from error
        raise


class _Quick:
    """A step that is compiled when it is first asked for.

    If the compiler fails, it warns once and is not ready. It refers to tensors and not to the
    program, so that memory is freed with the last user.
    """

    def __init__(self) -> None:
        self.fast: Callable[[], Any] | None = None
        self.works = True
        self.rounded = list[tuple[Tensor, Tensor]]()

    def ready(self, step: Callable[[State], None], state: State) -> bool:
        """Whether there is a compiled step; it is made first."""
        if self.fast is None and self.works:
            self._prepare(step, state)
        return self.fast is not None

    def __call__(self, steps: int) -> None:
        """Run so many steps, when ready."""
        assert self.fast is not None
        for mine, weight in self.rounded:  # clients may have started since the last step
            mine.copy_(weight)
        for _ in range(steps):
            self.fast()

    @staticmethod
    def _trace(
        step: Callable[[State], None], leaves: list[Tensor], shape: pytree.TreeSpec
    ) -> GraphModule:
        """Trace the step into a flat graph of tensor operations, without computing anything."""

        def flat(*leaves: Tensor) -> None:
            with _ZerosInMemory():  # type: ignore[no-untyped-call]  # torch leaves it untyped
                step(pytree.tree_unflatten(leaves, shape))

        return make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True)(*leaves)

    def _prepare(self, step: Callable[[State], None], state: State) -> None:
        keep()
        started = time.perf_counter()
        log.info("compiling the step of %d clients at a time ...", len(state.losses[0]))
        before = [t.clone() for t in state.written]
        leaves, shape = pytree.tree_flatten(state)
        try:
            with _quiet(), _no_collection():
                with _waking(state.at.device):
                    traced = self._trace(step, leaves, shape)
                if state.at.is_cuda:
                    _build_kernels(traced.graph)
                    self.rounded = keep_rounded(traced, leaves)
                    _for_gpu(traced)
                    leaves += [mine for mine, _ in self.rounded]
                compiled = _compile(traced, leaves)
            compiled(*leaves)
            _compare(step, state, before, self.rounded)
            self.fast = lambda: compiled(*leaves)
            if state.at.is_cuda:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    compiled(*leaves)
                # A graph may read constants of the code that it captured, so keep that.
                self.fast, self.kept = graph.replay, compiled
        except (torch.OutOfMemoryError, FedmixError):
            raise
        except Exception as error:  # no compiler, a full disk, ...: the plain step still works
            self.fast, self.works, self.rounded = None, False, []
            reason = first_line(error)
            said = (
                reason
                if isinstance(error, _Wrong)
                else f"the local step could not be compiled ({reason})"
            )
            warnings.warn(f"{said}; going on without, more slowly", FedmixWarning, stacklevel=2)
        else:
            log.info("compiled in %.0f s", time.perf_counter() - started)
            trim()
        finally:
            _restore(state, before)


class _ZerosInMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Replaces zero tensors without memory, which PyTorch uses for zero derivatives, by real ones.

    Compiled code would read their memory.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._efficientzerotensor.default:
            func = torch.ops.aten.zeros.default
        return func(*args, **(kwargs or {}))


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the compiler from logging errors: what is raised is told in a sentence."""
    logger = logging.getLogger("torch._inductor")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Disable Python's garbage collector.

    It would scan the many objects of a compiler again and again, and free little.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def _waking(device: torch.device) -> Iterator[None]:
    """Start slow parts of the compiler in the background, while the step is traced.

    On a GPU these are its worker processes: until they run, it compiles kernels one by one in this
    process. On a CPU it is the test of which vector instructions work. On both it is a hash of
    Triton, which is part of every cache key.
    """
    # sympy reads it when torch imports it; its default of 1000 is too small
    os.environ.setdefault("SYMPY_CACHE_SIZE", "100000")
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.cpu_vec_isa import pick_vec_isa
    from torch._inductor.runtime.triton_compat import HAS_TRITON, triton_key

    with ThreadPoolExecutor() as threads:
        if device.type == "cuda":
            AsyncCompile.wakeup()
        else:
            probe_once()
            threads.submit(pick_vec_isa)
        if HAS_TRITON:
            threads.submit(triton_key)
        yield


def _restore(state: State, before: list[Tensor]) -> None:
    for mine, old in zip(state.written, before, strict=True):
        mine.copy_(old)


def _compare(
    step: Callable[[State], None],
    state: State,
    before: list[Tensor],
    rounded: list[tuple[Tensor, Tensor]],
) -> None:
    """Run the step again, not compiled, and raise _Wrong if the compiled one gave other results.

    Compilers have bugs. Rounding can move a sample across the kink of a ReLU, which changes a
    gradient by some per cent; bugs change it by its own size. A gradient that would be zero, such
    as that of a bias before a normalisation, consists of rounding alone.
    """
    noise = 2**-8 if current() == "bf16" else 1e-5

    def norm(t: Tensor) -> float:
        # One tensor at a time: all weights in float64 would need much memory.
        return float(t.double().norm())

    try:
        if misrounded(rounded) > 0.01:
            raise _Wrong
        quick = [t.clone() for t in state.written]
        _restore(state, before)
        step(state)
        tensors = list(zip(quick, state.written, before, strict=True))
        params = len(state.params)
        # weights, momentum, the rest
        for group in (tensors[:params], tensors[params:-2], tensors[-2:]):
            moves = [norm(b - old) for _, b, old in group]
            for (a, b, old), moved in zip(group, moves, strict=True):
                rounding = 1e-5 * norm(old) + noise * max(moves)
                if not norm(a - b) <= 0.3 * moved + rounding and bool(b.isfinite().all()):
                    raise _Wrong
    except torch.OutOfMemoryError:  # the compiled step needs less memory, and did not fail
        return


class _Wrong(RuntimeError):
    """The compiled step gives other results than the plain one."""

    def __init__(self) -> None:
        super().__init__(
            "the compiled local step does not do what the plain one does: a bug of torch or of "
            "fedmix"
        )


def _compile(traced: GraphModule, leaves: list[Tensor]) -> Callable[..., Any]:
    """Compile a traced step with torch.compile's backend.

    Its tracer is not needed. The tracing context lets it find earlier results in its cache.
    """
    from torch._guards import TracingContext, tracing
    from torch._inductor import config
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    with warnings.catch_warnings(), tracing(TracingContext(FakeTensorMode(shape_env=ShapeEnv()))):
        # The precision is a setting, so that advice about it is of no use.
        warnings.filterwarnings("ignore", "TensorFloat32 tensor cores")
        # With padding, torch 2.11 reads a gradient of LeNet in the wrong layout.
        changed, writes_products = (
            {"comprehensive_padding": False},
            hasattr(config.triton, "native_matmul"),
        )
        if writes_products:
            # for the products that `leave_long_products` leaves to the compiler
            changed["triton.native_matmul"] = True
        with config.patch(changed), one_tile() if writes_products else nullcontext():
            compiled: Callable[..., Any] = torch._inductor.compile(traced, [*leaves])
    return compiled


def _build_kernels(graph: Graph) -> None:
    """Call each of our operators once, in parallel.

    The first call of an operator builds its kernel, which takes long one by one.
    """

    def made_up(node: Node) -> Tensor:
        like = node.meta["val"]
        return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)

    def call(operator: Node) -> None:
        args = pytree.tree_map_only(Node, made_up, operator.args)
        with torch.cuda.device(args[0].get_device()):  # new threads use the first device
            operator.target(*args)  # type: ignore[operator]  # a target may be a string

    with ThreadPoolExecutor() as threads:
        list(threads.map(call, _operators(graph)))


def _for_gpu(traced: GraphModule) -> None:
    """Mark what the compiler should not fuse with other operations."""
    leave_long_products(traced.graph)
    _write_once(traced)


def _one_a_client(node: Node) -> bool:
    value = node.meta["val"]
    return isinstance(value, Tensor) and value.ndim > 1 and value.numel() == len(value)


def _write_once(traced: GraphModule) -> None:
    """Write what our operators read to memory before views of it are taken, and this step's draws.

    Otherwise the compiler computes and writes it again for every operator; two of them read each
    activation and gradient. A drawn λ, and what it multiplies, would be read inside a product that
    the compiler writes, where torch 2.11 and 2.13 give the index of a number for each client a
    shape that does not fit.
    """
    from torch._inductor.inductor_prims import force_stride_order

    aten = torch.ops.aten
    shapes = (
        aten.view.default,
        aten._unsafe_view.default,
        aten.expand.default,
        aten.unsqueeze.default,
    )
    views = (*shapes, aten.permute.default, aten.transpose.int, aten.select.int)
    sources = dict[Node, None]()
    for operator in _operators(traced.graph):
        for source in operator.all_input_nodes:
            while source.target in views:
                source = source.all_input_nodes[0]
            if source.op == "call_function" and isinstance(source.meta["val"], Tensor):
                sources[source] = None
    for node in traced.graph.nodes:
        if node.target is aten.index_select.default and node.meta["val"].is_floating_point():
            sources[node] = None
        if node.target is aten.mul.Tensor and any(map(_one_a_client, node.all_input_nodes)):
            sources[node] = None
    for source in sources:
        with traced.graph.inserting_after(source):
            written = traced.graph.call_function(
                force_stride_order, (source, list(source.meta["val"].stride()))
            )
        written.meta = dict(source.meta)
        source.replace_all_uses_with(written)
        written.update_arg(0, source)  # its own argument was replaced too
    traced.recompile()


def _operators(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if str(node.target).startswith("fedmix.")]


def _room(p: Tensor, slots: int) -> Tensor:
    """Allocate a parameter for every slot.

    On a GPU, filters are channels-last, as its kernels read them.
    """
    if p.is_cuda and p.ndim == 4:
        return p.new_empty(slots, p.shape[0], *p.shape[2:], p.shape[1]).movedim(-1, 2)
    return p.new_empty(slots, *p.shape)


def _room_for(known: Known, slots: int) -> Known:
    """Allocate the facts about the client in every slot, and what the server shares."""
    shared = each_field(torch.empty_like, Known(shared=known.shared)).shared
    room = each_field(lambda t: t.new_zeros(slots, *t.shape[1:]), known._replace(shared=None))
    return room._replace(shared=shared)


def _leaves(known: Known) -> list[Tensor]:
    """Return the tensors with an axis of clients."""
    leaves = pytree.tree_leaves(tuple(known._replace(shared=None)))
    return [leaf for leaf in leaves if leaf is not None]


def _only(params: Params) -> Params:
    return {n: p[0] for n, p in params.items()}


def _stacked(params: Params) -> Params:
    return {n: p[None] for n, p in params.items()}
