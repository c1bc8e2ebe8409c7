"""Times one local step of all clients for several variants that take turns in one process.

Every round starts from the same weights and the same draws, so all variants and repeats do the same
work.
"""

import gc
import math
import os
import re
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count as counting
from typing import NamedTuple

import torch
from torch import _inductor as inductor

from fedmix.bench.cases import DEFAULT, WORKLOADS, Size, Workload, chosen, federation
from fedmix.bench.machine import wait
from fedmix.bench.products import multiplying, operations
from fedmix.bench.results import Record, with_speedups
from fedmix.core.devices import cores, device_named
from fedmix.core.errors import BadInput, FedmixWarning, first_line
from fedmix.core.ranks import ALONE, are_launched, launched, training_with
from fedmix.training.aggregation import Updates
from fedmix.training.batches import Resident
from fedmix.training.engines import Runner, Work
from fedmix.training.engines.choice import Choice
from fedmix.training.engines.slots import length
from fedmix.training.engines.threads import AT_FIRST
from fedmix.training.engines.vectorised import VectorisedRunner
from fedmix.training.federation import Federation

RANKS = "processes"  # the variant that is trained by all processes of a launch
Case = tuple[Workload, str, str, Size, str]
_numbers = counting()
_cases: dict[int, Federation] = {}  # those that this process trains with the first, by number
CLEARLY = 1.1  # clearly slower: so many times as long
Listener = Callable[[str], None]


class Timing(NamedTuple):
    """Times and memory of a round.

    `whole` is the seconds of the round, `local` those of the engine, and `memory` the peak of GPU
    memory in bytes, above what was in use before the round.
    """

    whole: float
    local: float
    memory: int


class Clocked:
    """An engine that measures its own time, from plans to updated weights."""

    def __init__(self, engine: Runner, device: torch.device) -> None:
        self.engine, self.device = engine, device
        self.seconds = 0.0
        self.steps = 0.0
        self.padding: float | None = None

    def run_round(self, data: Resident, work: Work) -> Iterator[Updates]:
        self.steps, self.padding = _steps_and_padding(self.engine, work)
        self.seconds = 0.0
        updates = iter(self.engine.run_round(data, work))
        while True:
            started = time.perf_counter()
            part = next(updates, None)
            wait(self.device)
            self.seconds += time.perf_counter() - started
            if part is None:
                return
            yield part


def _steps_and_padding(engine: Runner, work: Work) -> tuple[float, float | None]:
    """Mean steps of a client, and the fraction of padding in what the engine computes, if known."""
    steps = [plan.steps for plan in work.plans]
    if not isinstance(engine, VectorisedRunner):  # only this one pads
        return statistics.mean(steps), 0.0
    stays, slots = engine.packed(steps)
    masks = [plan.mask for plan in work.plans]
    return statistics.mean(steps), 1 - sum(int(mask.sum()) for mask in masks) / (
        slots * length(stays) * masks[0].shape[1]
    )


class Trial:
    """One variant with its federation, warmed up, and the rounds that were timed."""

    def __init__(
        self, workload: Workload, algorithm: str, variant: str, size: Size, device: str
    ) -> None:
        gc.collect()  # so that garbage of an earlier trial is not freed while memory is counted
        before = _allocated(device)
        self.variant, self.algorithm, self.precision = variant, algorithm, size.precision
        self.case = workload, algorithm, variant, size, device
        several = variant == RANKS or (variant == DEFAULT and self._chosen().processes > 1)
        self.ranks = launched() if several and are_launched() else ALONE
        self.number = next(_numbers)
        torch.set_num_threads(AT_FIRST)  # as where a run begins
        with training_with(self.ranks):
            self.federation: Federation = federation(*self.case)
        if variant != DEFAULT:
            self.federation.threads = None  # those that are tried
        self.device = self.federation.device
        self.start = self.federation.params
        self.clock = Clocked(self.federation.runner, self.device)
        self.federation.runner = self.clock
        self.threads, self.warmup = self._warm_up()
        self.held = _allocated(device) - before
        self.rounds: list[Timing] = []

    def _warm_up(self) -> tuple[int, float]:
        """Find the fastest number of CPU threads; return it and the time of its first round.

        Larger numbers are tried until one is clearly slower. On a GPU the number is kept: the host
        only launches work. Worker processes have one thread each.
        """
        best, threads, warmup = math.inf, 0, 0.0
        for count in self._thread_counts():
            first, second = self._anew(count), self._round()
            if second.local < best:
                best, threads, warmup = second.local, count, first.whole
            elif second.local > CLEARLY * best:
                break
        if threads != self.threads:
            self._anew(threads)
        return threads, warmup

    def _chosen(self) -> Choice:
        workload, algorithm, _, size, device = self.case
        return chosen(workload, algorithm, size, device)

    def _thread_counts(self) -> list[int]:
        if self.device.type == "cpu" and (self.ranks.count > 1 or self.variant in (RANKS, DEFAULT)):
            divided = max(1, cores() // self.ranks.count)  # as `fedmix run` does
            return [self.federation.threads or divided]
        return thread_counts(cores()) if self.device.type == "cpu" else [torch.get_num_threads()]

    def _anew(self, threads: int) -> Timing:
        """Run a first round with that many threads; compiled code depends on their number."""
        self.threads = threads
        if isinstance(self.clock.engine, VectorisedRunner):
            self.clock.engine.forget()
        return self._round(anew=True)

    def measure(self) -> None:
        """Time one more round."""
        self.rounds.append(self._round())

    def _round(self, *, anew: bool = False) -> Timing:
        torch.set_num_threads(self.threads)
        self.federation.params = self.start
        cuda = self.device.type == "cuda"
        before = _allocated(self.device)
        if cuda:
            torch.cuda.reset_peak_memory_stats(self.device)
        wait(self.device)
        started = time.perf_counter()
        task = partial(_train_too, self.number, self.case, self.threads, anew=anew)
        with self.ranks.joined(task):
            self.federation.params, _, _ = self.federation._train_round()
        wait(self.device)
        whole = time.perf_counter() - started
        if self.ranks.count > 1:  # the clock has seen this one's clients only
            sizes = self.federation.data.clients.sizes.tolist()
            self.clock.steps = statistics.mean(map(self.federation.training.steps, sizes))
        return Timing(
            whole,
            self.clock.seconds if self.ranks.count == 1 else whole,  # with the others' time
            torch.cuda.max_memory_allocated(self.device) - before if cuda else 0,
        )

    def record(self, workload: str, products: float = 0.0, pace: float = 0.0) -> Record:
        """Summarise the rounds that were timed, of which there must be one at least.

        Args:
            workload: Its name.
            products: Operations of a step of all clients in matrix products.
            pace: Operations in a second with which this machine multiplies matrices.
        """
        steps = self.clock.steps
        ms = [1000 * timing.local / steps for timing in self.rounds]
        share = 1000 * products / pace / statistics.median(ms) if products and pace else None
        outside = statistics.median(1 - timing.local / timing.whole for timing in self.rounds)
        engine = self.variant != "plain"
        return Record(
            workload, self.algorithm, self.variant, statistics.median(ms), min(ms), max(ms),
            device=self.device.type,
            clients=self.federation.training.per_round(len(self.federation.data.clients)),
            batch=self.federation.training.batch_size,
            steps=steps,
            repeats=len(ms),
            warmup_s=self.warmup,
            threads=self.threads if self.device.type == "cpu" else None,
            workers=self.ranks.count if self.ranks.count > 1 else None,
            share=share,
            peak_mib=(self.held + max(t.memory for t in self.rounds)) / 2**20
            if self.device.type == "cuda" else None,
            round_ms=1000 * statistics.median(t.whole for t in self.rounds) if engine else None,
            outside=outside if engine and self.ranks.count == 1 else None,
            padding=self.clock.padding if engine and self.ranks.count == 1 else None,
            precision=self.precision if self.device.type == "cuda" else "float32",
        )  # fmt: skip


def _train_too(number: int, case: Case, threads: int, *, anew: bool) -> None:
    """Train a round of a trial with the first process, on another."""
    with _compiling_anew():
        if anew:
            _cases[number] = federation(*case)
        torch.set_num_threads(threads)
        _cases[number]._train_round()


@contextmanager
def _compiling_anew() -> Iterator[None]:
    """Disable caches of compiled code, in this process and in those that it starts meanwhile."""
    name = "TORCHINDUCTOR_FORCE_DISABLE_CACHES"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        with inductor.config.patch(force_disable_caches=True):
            yield
    finally:
        os.environ.pop(name)
        os.environ.update({} if before is None else {name: before})


def _allocated(device: str | torch.device) -> int:
    return torch.cuda.memory_allocated(device) if torch.device(device).type == "cuda" else 0


def thread_counts(available: int) -> list[int]:
    """Powers of two up to the number of cores, and that number.

    >>> thread_counts(6)
    [1, 2, 4, 6]
    """
    return sorted({2**i for i in range(available.bit_length())} | {available})


def most_processes(
    groups: Sequence[tuple[str, str, Sequence[str]]], size: Size, device: str
) -> int:
    """Return the number of processes that groups of workload, algorithm and variants need."""
    wanted = [1]
    for name, algorithm, variants in groups:
        if RANKS in variants:
            wanted.append(cores())
        if DEFAULT in variants:
            wanted.append(chosen(WORKLOADS[name], algorithm, size, device).processes)
    return max(wanted)


class Bench:
    """Measures groups of variants and keeps the results, so that a stopped run can show them.

    Args:
        size: Size and precision of the rounds.
        device: The device, such as "cpu" or "cuda".
        repeats: Number of timed rounds of each variant.
        listen: Function that is told what is being measured.

    Raises:
        BadInput: `repeats` is below 1.
    """

    def __init__(
        self, size: Size, device: str, repeats: int, listen: Listener = lambda _: None
    ) -> None:
        if repeats < 1:
            raise BadInput(f"--repeats {repeats}: at least one is needed")
        self.size, self.device, self.repeats, self.listen = size, device, repeats, listen
        self.notes: list[str] = []
        self._done: list[Record] = []
        self._now: tuple[str, list[Trial]] = ("", [])
        self._products, self._paces = 0.0, list[float]()

    @property
    def records(self) -> list[Record]:
        """All results so far."""
        workload, trials = self._now
        pace = statistics.median(self._paces) if self._paces else 0.0
        new = (t.record(workload, self._products, pace) for t in trials if t.rounds)
        return with_speedups([*self._done, *new])

    def group(self, name: str, workload: Workload, algorithm: str, variants: Sequence[str]) -> None:
        """Warm the variants up, then time them in turns.

        A variant that fails is noted, and the others go on.
        """
        threads = torch.get_num_threads()
        trials: list[Trial] = []
        self._now = name, trials
        self._products, self._paces = operations(workload, algorithm, self.size), []
        try:
            for variant in variants:
                self.listen(f"{name} {algorithm} {variant}: warming up")
                if (trial := self._trial(name, workload, algorithm, variant)) is not None:
                    trials.append(trial)
            for repeat in range(self.repeats):
                for trial in trials:
                    self.listen(
                        f"{name} {algorithm} {trial.variant}: {repeat + 1} of {self.repeats}"
                    )
                    trial.measure()
                self._paces.append(multiplying(device_named(self.device), self.size.precision))
        finally:
            torch.set_num_threads(threads)
            self._done, self._now = self.records, ("", [])
            torch.compiler.reset()

    def _trial(self, name: str, workload: Workload, algorithm: str, variant: str) -> Trial | None:
        with warnings.catch_warnings(record=True) as said, _compiling_anew():
            warnings.simplefilter("always")
            try:
                trial = Trial(workload, algorithm, variant, self.size, self.device)
            except BadInput:
                raise
            except Exception as error:  # the other variants can still be measured
                self._note(f"{name} {algorithm} {variant} failed: {first_line(error)}")
                return None
        for text in dict.fromkeys(
            str(w.message) for w in said if issubclass(w.category, FedmixWarning)
        ):
            self._note(f"{name} {algorithm} {variant}: {text}")
        return trial

    def _note(self, text: str) -> None:
        # file names without folders, since notes are meant to be published
        self.notes.append(re.sub(r"(?:/[^\s/'\"]+)+/", "", text))
