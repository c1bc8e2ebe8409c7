"""Training of a round's clients in several processes of one thread each.

On a CPU, threads of one process mostly wait for each other. Every worker has its own engine and
trains its share of the clients. Everything large is in memory that they share: the data, the
round's weights, the pool of means, and the weights that come back. Only draws and losses are sent.
"""

import ctypes
import math
import multiprocessing
import os
import pickle
import resource
import shutil
import signal
import sys
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedmix.core.errors import BadInput, FedmixError, FedmixWarning
from fedmix.core.types import Array, each_field
from fedmix.data.federated import FederatedData, Ragged
from fedmix.training.aggregation import Updates
from fedmix.training.batches import Received, Resident
from fedmix.training.engines.base import Runner, Work

SHARED_MEMORY = Path("/dev/shm")  # where Linux keeps it; small in many containers
OR_ALONE = "or set engine.processes=1"
SECONDS = 5.0  # time for a process to end
# File descriptors of a worker: four, and one for each block of shared memory that is being sent.
DESCRIPTORS = 10
OTHER_DESCRIPTORS = 20  # to start workers, and to write files at the same time
PR_SET_PDEATHSIG = 1  # from Linux's prctl.h
ALIGNED = 64  # bytes, the size of a CPU's cache line
Kinds = dict[str, tuple[torch.Size, torch.dtype]]


class Reply(NamedTuple):
    """A worker's clients in the order of their weights, their losses and warnings; or its error."""

    clients: list[int]
    losses: Array | None
    said: list[str]
    error: Exception | None = None


class Processes:
    """Divides a round among worker processes, and yields their updates in turn.

    Workers start in the first round, and again after a round that failed. The next round overwrites
    the weights that a round yields. Workers get the same clients in every run, so that runs agree
    to the bit.

    Args:
        build: Makes the engine of a worker. It must be picklable.
        count: The largest number of workers.

    Raises:
        BadInput: `build` cannot be pickled.
    """

    def __init__(self, build: Callable[[], Runner], count: int) -> None:
        self.count = count
        self._workers: list[_Worker] = []
        self._seen: dict[str, Any] = {}
        # `build` is pickled once, for all workers.
        self._shared: dict[str, Any] = {"build": _pickled(build, pickle.dumps)}
        weakref.finalize(self, _end, self._workers)

    def run_round(self, data: Resident, work: Work) -> Iterator[Updates]:
        """Yield the updates of each worker's clients.

        Args:
            data: The training data.
            work: The work of the round.

        Raises:
            FedmixError: A worker died, or memory or file descriptors do not suffice. Errors of
                workers are raised here too.
        """
        shares = divided([plan.steps for plan in work.plans], self.count)
        try:
            self._share(data, work)
            _check_descriptors(len(shares) - len(self._workers))
            while len(self._workers) < len(shares):
                self._workers.append(_Worker())
            busy = self._workers[: len(shares)]
            for worker, share in zip(busy, shares, strict=True):
                own = work._replace(
                    clients=work.clients[share],
                    plans=[work.plans[i] for i in share],
                    known=work.known.of(share),
                )
                worker.send(own, self._shared)
            for worker in busy:
                yield worker.updates()
        except BaseException:
            # The state of the other workers, and of shared memory, is unknown.
            _end(self._workers)
            self._seen.clear()
            raise

    def _share(self, data: Resident, work: Work) -> None:
        """Copy what workers read into shared memory, unless it is there already."""
        if self._is_new("arrays", data.x):
            self._shared["arrays"] = _put(None, {"x": data.x, "y": data.y})
        if self._is_new("clients", data.data):
            rows = data.data.clients
            self._shared["rows"] = _put(
                None,
                {"flat": torch.from_numpy(rows.flat), "offsets": torch.from_numpy(rows.offsets)},
            )
            self._shared["about"] = {
                n: getattr(data.data, n) for n in ("classes", "transform", "private", "name")
            }
        self._shared["weights"] = _put(self._shared.get("weights"), work.params)
        if work.pool is not None and self._is_new("pool", work.pool):
            self._shared["pool"] = _put(self._shared.get("pool"), work.pool._asdict())

    def _is_new(self, name: str, value: object) -> bool:
        before, self._seen[name] = self._seen.get(name), value
        return before is not value


def divided(steps: Sequence[int], count: int) -> list[list[int]]:
    """Divide clients with these numbers of steps into up to `count` shares of positions.

    The longest are dealt out first, in alternating direction. So shares take about as long, and
    have about as many clients, since engines compile their step for a number of clients.

    >>> divided([5, 1, 4, 2, 3], 2)
    [[0, 1, 3], [2, 4]]
    """
    count = min(count, len(steps))
    shares: list[list[int]] = [[] for _ in range(count)]
    for i, client in enumerate(np.argsort([-s for s in steps], kind="stable").tolist()):
        lap, place = divmod(i, count)
        shares[place if lap % 2 == 0 else count - 1 - place].append(client)
    return [sorted(share) for share in shares]


class _Name(str):
    """The name of a worker, which ties the worker to its parent when it is unpickled.

    It is the first thing that a worker reads, before it imports anything. Linux then kills the
    worker when its parent dies; if the parent is gone already, the worker exits. The worker's own
    watch begins after the imports.
    """

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        tie = f"__import__('ctypes').CDLL(None).prctl({PR_SET_PDEATHSIG}, {signal.SIGKILL:d})"
        check = f"__import__('os').getppid() == {os.getpid()} or __import__('os')._exit(1)"
        # only builtins: our modules cannot be imported yet
        return eval, (f"({tie}, {check}, {str(self)!r})[2]",)


class _Worker:
    """The parent's side of a worker: process, pipe, what was sent, and memory for its weights."""

    def __init__(self) -> None:
        # A forked process would inherit locks that are never released.
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        # Large data goes through our pipe: start() would hang if the process ended at once.
        name = (_Name if sys.platform == "linux" else str)("fedmix worker")
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True, name=name)
        with _sigint_blocked():
            self.process.start()
        theirs.close()
        self.told: dict[str, Any] = {}
        self.room: _Shared | None = None

    def send(self, work: Work, shared: Mapping[str, Any]) -> None:
        """Send it work, and whatever it does not hold yet; raise FedmixError if it died."""
        if self.room is None or len(next(iter(self.room.tensors.values()))) < len(work.clients):
            self.room = _Shared(
                _kinds({n: p.expand(len(work.clients), *p.shape) for n, p in work.params.items()})
            )
        held = {**shared, "room": self.room}
        news = {name: value for name, value in held.items() if self.told.get(name) is not value}
        sent = work._replace(params={}, pool=None, known=each_field(Tensor.numpy, work.known))
        message = _pickled((sent, news), ForkingPickler.dumps)
        try:
            self.pipe.send_bytes(message)
        except OSError:
            raise self._lost() from None
        self.told = held

    def updates(self) -> Updates:
        """Wait for its updates; raise its error, or FedmixError if it died."""
        try:
            reply: Reply = self.pipe.recv()
        except (EOFError, OSError):
            raise self._lost() from None
        for text in reply.said:
            warnings.warn(text, FedmixWarning, stacklevel=3)
        if reply.error is not None:
            raise reply.error
        assert self.room is not None
        assert reply.losses is not None
        params = {n: p[: len(reply.clients)] for n, p in self.room.tensors.items()}
        return Updates(reply.clients, params, torch.from_numpy(reply.losses))

    def _lost(self) -> FedmixError:
        self.process.join(SECONDS)
        code = self.process.exitcode
        how = (
            f"was killed (signal {-code})"
            if code is not None and code < 0
            else f"ended (exit code {code})"
        )
        return FedmixError(
            f"a worker process {how}, and the round with it; if memory ran out, use fewer "
            "engine.processes; a script must start runs under if __name__ == '__main__'"
        )


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Start children with SIGINT blocked, since the parent handles Ctrl-C."""
    resource_tracker.ensure_running()  # else it would start now, and unblock SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _check_descriptors(workers: int) -> None:
    """Raise FedmixError if new workers need more open files than this process may have.

    Without this check it would hang.
    """
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = len(list(Path("/dev/fd").iterdir())) + DESCRIPTORS * workers + OTHER_DESCRIPTORS
    if workers > 0 and most != resource.RLIM_INFINITY and needed > most:
        raise FedmixError(
            f"{workers} worker processes need {needed} open files, and this one may have {most}; "
            f"allow more (ulimit -n {needed}), or use fewer engine.processes"
        )


def _end(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.process.terminate()
    for worker in workers:
        worker.process.join(SECONDS)
        worker.process.kill()  # if it is still there
        worker.pipe.close()
    workers.clear()


def _pickled(value: object, dumps: Callable[[object], Any]) -> bytes:
    """Pickle what a worker gets; raise BadInput if that fails.

    The bytes go only to processes that this one started.
    """
    try:
        return bytes(dumps(value))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise BadInput(
            f"{error}, so that no worker process can have it; define it at the top of a module, "
            f"{OR_ALONE}"
        ) from error


class _Shared:
    """Tensors in one block of shared memory, since each block takes file descriptors everywhere.

    The memory has no name that could be left behind; it is freed with its last user.
    """

    def __init__(self, kinds: Kinds, memory: Tensor | None = None) -> None:
        sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in kinds.values()]
        *starts, end = accumulate((-(-size // ALIGNED) * ALIGNED for size in sizes), initial=0)
        self.kinds, self.memory = kinds, _memory(end) if memory is None else memory
        self.tensors = {
            name: self.memory[start : start + size].view(dtype).view(shape)
            for (name, (shape, dtype)), start, size in zip(
                kinds.items(), starts, sizes, strict=True
            )
        }

    def __reduce__(self) -> tuple[type, tuple[Kinds, Tensor]]:
        return type(self), (self.kinds, self.memory)


def _kinds(tensors: Mapping[str, Tensor]) -> Kinds:
    return {name: (t.shape, t.dtype) for name, t in tensors.items()}


def _put(there: _Shared | None, tensors: Mapping[str, Tensor]) -> _Shared:
    """Copy tensors into shared memory: into `there` if shapes and types fit, else a new block."""
    if there is None or there.kinds != _kinds(tensors):
        there = _Shared(_kinds(tensors))
    for name, tensor in tensors.items():
        there.tensors[name].copy_(tensor)
    return there


def _memory(needed: int) -> Tensor:
    free = shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else needed
    if needed > free:  # else the first process to write there is killed
        raise FedmixError(
            f"workers need {-(-needed >> 20)} MiB more of shared memory, and {SHARED_MEMORY} has "
            f"{free >> 20} left; enlarge it (docker run --shm-size), {OR_ALONE}"
        )
    memory = torch.empty(needed, dtype=torch.uint8)
    memory.share_memory_()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return memory


def _serve(parent: Connection) -> None:
    """Main loop of a worker: train and reply until the parent closes the pipe or is gone."""
    signal.signal(signal.SIGTERM, _leave)
    torch.set_num_threads(1)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    # To Linux a parent is a thread, which may end before its process; the watch replaces this.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0)
    engine: Runner | None = None
    held: dict[str, Any] = {}
    while True:
        try:
            message = parent.recv_bytes()
        except (EOFError, OSError):
            return
        try:
            work, news = _unpickled(message)
            held |= news
            engine = engine or _unpickled(held["build"])()
            if news.keys() & {"arrays", "rows"}:
                held["data"] = _resident(held)
            reply = _train(engine, held, work)
        except Exception as error:  # the parent raises it
            reply = Reply([], None, [], _told(error))
        parent.send(reply)


def _leave(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # leave only once
    sys.exit()


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # at once, since nobody waits for the result


def _unpickled(message: bytes) -> Any:
    try:
        return pickle.loads(message)
    except (AttributeError, ImportError) as error:
        raise BadInput(
            f"a worker process cannot import what it needs ({error}); define it in a module, "
            f"{OR_ALONE}"
        ) from None


def _resident(held: Mapping[str, Any]) -> Resident:
    """Return the data as the parent has it, without the test samples."""
    x, y = held["arrays"].tensors["x"], held["arrays"].tensors["y"]
    rows = Ragged(**{name: tensor.numpy() for name, tensor in held["rows"].tensors.items()})
    return Resident(
        FederatedData(x.numpy(), y.numpy(), rows, **held["about"]),
        x,
        y,
    )


def _train(engine: Runner, held: Mapping[str, Any], work: Work) -> Reply:
    pool = Received(**held["pool"].tensors) if "pool" in held else None
    clients: list[int] = []
    losses: list[Tensor] = []
    with warnings.catch_warnings(record=True) as said:
        for updates in engine.run_round(
            held["data"],
            work._replace(
                params=held["weights"].tensors,
                pool=pool,
                known=each_field(torch.from_numpy, work.known),
            ),
        ):
            for name, weights in updates.params.items():
                held["room"].tensors[name][len(clients) : len(clients) + len(updates.clients)] = (
                    weights
                )
            clients += updates.clients
            losses.append(updates.losses)
    ours = [str(w.message) for w in said if issubclass(w.category, FedmixWarning)]
    return Reply(clients, torch.cat(losses).numpy(), ours)


def _told(error: Exception) -> Exception:
    """Return the error in a form that can be sent, with its traceback if it was not expected."""
    if not isinstance(error, FedmixError):
        error.add_note(f"in a worker process:\n{traceback.format_exc()}")
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # its class may do anything when it is unpickled
        told = FedmixError(f"{type(error).__name__}: {error}")
        told.add_note(traceback.format_exc())
        return told
    return error
