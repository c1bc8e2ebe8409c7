"""Training of many clients at once on one device: the local step under `vmap`.

Every client has its own weights. Clients take turns in a number of slots that is chosen so that few
are idle: when a client is done, the next one starts in its slot. Within a batch, padding is masked.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import torch
from torch import Tensor

from fedmix.core.errors import BadInput, Diverged, FedmixError
from fedmix.core.validation import flag, is_whole, shown
from fedmix.kernels.precision import Precision
from fedmix.models.functional import Model
from fedmix.objectives.base import Objective
from fedmix.training.aggregation import Updates
from fedmix.training.batches import PlanOnDevice, Resident
from fedmix.training.engines.base import Engine, Runner, Work, diverged
from fedmix.training.engines.choice import choose
from fedmix.training.engines.compiled import WINDOW, Program
from fedmix.training.engines.slots import Stay, arrange, length, pack, slots_for
from fedmix.training.settings import Training

# On a CPU, stacking clients is faster if their weights fit into its caches. With 15 clients
# of the paper's VGG (14 MB each): 1159 ms a step stacked, 887 ms one by one; with 10 of LeNet-5
# (0.25 MB each) stacking is three times faster.
CPU_STACKS_BELOW = 8 * 2**20


@dataclass(frozen=True, kw_only=True)
class Vectorised(Engine):
    """Trains many clients at once; halves their number when the device's memory does not suffice.

    Args:
        chunk: How many clients train at once. By default all, but only one if a large model trains
            on a CPU.
        compile: Whether to compile the step first, which takes some seconds for each number of
            slots. By default on a GPU, and on a CPU if the run is long (`choice.py`).

    Raises:
        BadInput: `chunk` is not a positive whole number, or `compile` is not a bool.
    """

    name = "vectorised"
    chunk: int | None = None
    compile: bool | None = None

    def __post_init__(self) -> None:
        if self.chunk is not None and not is_whole(self.chunk):
            raise BadInput(
                f"chunk={shown(self.chunk)}: at least one client must run at a time, and a whole "
                "number of them"
            )
        if self.compile is not None:
            flag("compile", self.compile)

    def compiles(self, model: Model, steps: int = 0) -> bool:
        if self.compile is not None:
            return self.compile
        on_gpu = str(self.device).startswith("cuda")
        return on_gpu or choose(steps, 1, 1, recurrent=model.recurrent).compile

    def settled(self, compiled: bool) -> "Vectorised":
        return self if self.compile is not None else replace(self, compile=compiled)

    def start(self, model: Model, objective: Objective, training: Training) -> Runner:
        return VectorisedRunner(
            model, objective, training, self.chunk, self.compiles(model), self.precision
        )


class VectorisedRunner:
    """Runs the clients of a round in slots, and keeps the compiled steps."""

    def __init__(
        self,
        model: Model,
        objective: Objective,
        training: Training,
        chunk: int | None,
        compile: bool,
        precision: Precision,
    ) -> None:
        weights = list(model.module.parameters())
        large = sum(w.numel() * w.element_size() for w in weights) > CPU_STACKS_BELOW
        self.chunk = 1 if chunk is None and large and weights[0].device.type == "cpu" else chunk
        self.model, self.training, self.compile = model, training, compile
        self.precision: Precision = precision
        self.objective, self.phases = objective, objective.phases()
        self.partners_of_all = objective.needs.partner == "global"
        self._programs: dict[int, Program] = {}

    def run_round(self, data: Resident, work: Work) -> Iterator[Updates]:
        waiting = list(range(len(work.clients)))
        while waiting:
            packed, slots = self.packed([work.plans[i].steps for i in waiting])
            stays = [stay._replace(client=waiting[stay.client]) for stay in packed]
            short = False
            try:
                for updates, finished in self._run(data, work, stays, slots):
                    waiting = [i for i in waiting if i not in finished]
                    yield updates
            except torch.OutOfMemoryError as error:
                if slots == 1:
                    raise FedmixError(
                        "one client does not fit into the device's memory; lower "
                        "training.batch_size or use a smaller model"
                    ) from error
                short = True
            if short:  # only here, where no traceback refers to the program
                self.chunk = -(-slots // 2)
                self.forget()

    def packed(self, steps: Sequence[int]) -> tuple[list[Stay], int]:
        """Return the stays of clients with these numbers of steps, and the number of slots."""
        halving, share = (True, 0.5) if self.compile else (False, 0.9)
        slots = slots_for(steps, self.chunk or len(steps), halving=halving, share=share)
        return pack(steps, slots), slots

    def forget(self) -> None:
        """Free the memory and the compiled code of earlier rounds."""
        self._programs.clear()

    def _run(
        self, data: Resident, work: Work, stays: list[Stay], slots: int
    ) -> Iterator[tuple[Updates, set[int]]]:
        """Yield updates as clients finish, with their positions in the round."""
        located = [
            data.locate(p, int(k), self.partners_of_all)
            for p, k in zip(work.plans, work.clients, strict=True)
        ]
        plan = data.put(arrange(located, stays, slots))
        program = self._program(data, work, plan)
        program.begin(work.params, work.lr, work.pool, work.known)
        program.start(list(range(slots)))
        program.meet(work.known, [stay for stay in stays if not stay.start])
        state, steps = program.state, length(stays)
        losses = torch.zeros(steps, slots, device=data.device)
        finite: list[Tensor] = []
        now = loaded = 0
        try:
            for stop, group in groupby(stays, lambda stay: stay.stop):
                while now < stop:
                    if now == loaded:
                        program.load(plan.at(slice(now, now + WINDOW)))
                        loaded = now + WINDOW
                    then = min(stop, loaded)
                    program.run(then - now)
                    window = loaded - WINDOW
                    losses[now:then] = state.losses[now - window : then - window]
                    now = then
                done = list(group)
                where = torch.tensor([stay.slot for stay in done], device=data.device)
                params = {n: p[where] for n, p in state.params.items()}
                finite.append(
                    torch.stack(
                        [torch.isfinite(p.reshape(len(p), -1)).all(1) for p in params.values()]
                    ).all(0)
                )
                own = torch.stack(
                    [losses[stay.start : stay.stop, stay.slot].mean() for stay in done]
                )
                yield (
                    Updates([int(work.clients[stay.client]) for stay in done], params, own),
                    {stay.client for stay in done},
                )
                if stop < steps:
                    program.start([stay.slot for stay in done])
                    program.meet(work.known, [stay for stay in stays if stay.start == stop])
        except torch.OutOfMemoryError:
            # Clients that are done do not run again, so check them now.
            self._check(data, work, stays, plan, losses, finite)
            raise
        self._check(data, work, stays, plan, losses, finite)

    def _program(self, data: Resident, work: Work, plan: PlanOnDevice) -> Program:
        slots = plan.rows.shape[1]
        found = self._programs.get(slots)
        if found is None or not found.fits(data, plan, work.pool):
            # Only compiled code is worth keeping.
            if found is not None or not self.compile:
                found = None
                self.forget()
            found = self._programs[slots] = Program(
                self.model, self.phases, self.training, data, work.params, plan, work.pool,
                work.known, compile=self.compile, precision=self.precision,
            )  # fmt: skip
        return found

    def _check(
        self,
        data: Resident,
        work: Work,
        stays: list[Stay],
        plan: PlanOnDevice,
        losses: Tensor,
        finite: list[Tensor],
    ) -> None:
        """Raise Diverged if a loss or a weight of the clients that are done is NaN or infinite.

        The error names the client and the step.
        """
        over = torch.cat(finite) if finite else torch.ones(0, dtype=torch.bool, device=data.device)
        if bool(over.all() & torch.isfinite(losses).all()):
            return
        for stay, kept in zip(stays, over.tolist(), strict=False):
            lost = (~torch.isfinite(losses[stay.start : stay.stop, stay.slot])).nonzero()
            if len(lost) or not kept:
                step = int(lost[0]) if len(lost) else stay.stop - stay.start - 1
                batch = data.batch(plan.at(stay.start + step, stay.slot), work.pool)
                what = diverged(batch, "the loss" if len(lost) else "the update", self.objective)
                raise Diverged(work.round, int(work.clients[stay.client]), step, what)
