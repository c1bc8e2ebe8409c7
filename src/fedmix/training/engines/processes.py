"""The clients of a round on several processes of one thread each: on a CPU, threads of one process
mostly wait for each other.

Every worker has an engine of its own and trains its share of the clients. All that is large lies in
memory that they share: the data, the round's weights, the pool of means, and the weights that come
back. Only draws and losses are sent.
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
SECONDS = 5.0  # for a process to be gone
# of open files: four for a worker, and one more for each piece of shared memory until it has it
DESCRIPTORS = 10
OTHER_DESCRIPTORS = 20  # to start workers, and to write files meanwhile
PR_SET_PDEATHSIG = 1  # of Linux's prctl.h
ALIGNED = 64  # bytes: a line of a CPU's cache
Kinds = dict[str, tuple[torch.Size, torch.dtype]]


class Reply(NamedTuple):
    """A worker's clients in the order of their weights, their losses, and warnings; or what went
    wrong.
    """

    clients: list[int]
    losses: Array | None
    said: list[str]
    error: Exception | None = None


class Processes:
    """Divides a round among up to `count` workers, each with the engine that `build` makes, and
    yields their updates in turn.

    Workers start with the first round, and anew after a round that failed. The weights that a round
    yields are overwritten by the next one. Workers get the same clients in every run, so that runs
    agree to the bit.
    """

    def __init__(self, build: Callable[[], Runner], count: int) -> None:
        self.count = count
        self._workers: list[_Worker] = []
        self._seen: dict[str, Any] = {}
        self._shared: dict[str, Any] = {
            "build": _pickled(build, pickle.dumps)
        }  # by value, for each to read
        weakref.finalize(self, _end, self._workers)

    def run_round(self, data: Resident, work: Work) -> Iterator[Updates]:
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
        except (
            BaseException
        ):  # nobody knows what the others are doing, or what has come into shared memory
            _end(self._workers)
            self._seen.clear()
            raise

    def _share(self, data: Resident, work: Work) -> None:
        """Bring what workers read into shared memory, where it is not there yet."""
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
    """Positions of clients with so many steps in up to `count` shares.

    The longest are dealt out first, there and back. So shares are about as long, and have as many
    clients, since engines compile their step for a number of clients.

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
    """The name of a worker, and the first that it reads of its parent, before anything is imported:
    Linux is to kill it with its parent, which may be gone already. Its own watch begins after the
    imports.
    """

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        tie = f"__import__('ctypes').CDLL(None).prctl({PR_SET_PDEATHSIG}, {signal.SIGKILL:d})"
        check = f"__import__('os').getppid() == {os.getpid()} or __import__('os')._exit(1)"
        return eval, (
            f"({tie}, {check}, {str(self)!r})[2]",
        )  # of builtins alone: it cannot find our modules yet


class _Worker:
    """The parent's view of a worker: its process, the pipe to it, what it has been told, and the
    room for its weights.
    """

    def __init__(self) -> None:
        context = multiprocessing.get_context(
            "spawn"
        )  # a fork would inherit locks that nobody opens again
        self.pipe, theirs = context.Pipe()
        # What is large goes through our pipe: start() would wait for ever to hand it to a process
        # that ended at once.
        name = (_Name if sys.platform == "linux" else str)("fedmix worker")
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True, name=name)
        with _deaf_to_ctrl_c():
            self.process.start()
        theirs.close()
        self.told: dict[str, Any] = {}
        self.room: _Shared | None = None

    def send(self, work: Work, shared: Mapping[str, Any]) -> None:
        """Have it train; with the work goes what it does not hold yet."""
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
        """What it trained, once that is done."""
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
            "engine.processes; "
            "a script must start runs under if __name__ == '__main__'"
        )


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Processes that start meanwhile never hear of Ctrl-C, which is the parent's business."""
    resource_tracker.ensure_running()  # which would otherwise start now, and open its ears
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _check_descriptors(workers: int) -> None:
    """Refuse workers that would take more files than this process may have open: in the end it
    would wait for ever.
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
        worker.process.kill()  # if it is not gone
        worker.pipe.close()
    workers.clear()


def _pickled(value: object, dumps: Callable[[object], Any]) -> bytes:
    """What a worker is to get, as bytes.

    They go to processes that this one started, and to nobody else.
    """
    try:
        return bytes(dumps(value))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise BadInput(
            f"{error}, so that no worker process can have it; define it at the top of a module, "
            f"{OR_ALONE}"
        ) from error


class _Shared:
    """Tensors of some kinds in one piece of shared memory, since each piece takes file descriptors
    in every process.

    It has no name that could be left behind, and goes with the last who holds it.
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
    """The tensors in shared memory: where some were before, if they are of that kind, else in a new
    place.
    """
    if there is None or there.kinds != _kinds(tensors):
        there = _Shared(_kinds(tensors))
    for name, tensor in tensors.items():
        there.tensors[name].copy_(tensor)
    return there


def _memory(needed: int) -> Tensor:
    free = shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else needed
    if needed > free:  # else the first who writes there is killed
        raise FedmixError(
            f"workers need {-(-needed >> 20)} MiB more of shared memory, and {SHARED_MEMORY} has "
            f"{free >> 20} left; "
            f"enlarge it (docker run --shm-size), {OR_ALONE}"
        )
    memory = torch.empty(needed, dtype=torch.uint8)
    memory.share_memory_()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return memory


def _serve(parent: Connection) -> None:
    """A worker's life: a share, a reply, until the parent closes the pipe or is gone."""
    signal.signal(signal.SIGTERM, _leave)
    torch.set_num_threads(1)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    if (
        sys.platform == "linux"
    ):  # to which a parent is a thread, which may end before its process does
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
        except Exception as error:  # whatever it is, the parent raises it
            reply = Reply([], None, [], _told(error))
        parent.send(reply)


def _leave(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
    sys.exit()


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # in the middle of whatever it is, which nobody waits for any more


def _unpickled(message: bytes) -> Any:
    try:
        return pickle.loads(message)
    except (AttributeError, ImportError) as error:
        raise BadInput(
            f"a worker process cannot import what it needs ({error}); define it in a module, "
            f"{OR_ALONE}"
        ) from None


def _resident(held: Mapping[str, Any]) -> Resident:
    """The data as the parent has it, but for the test samples."""
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
    """The error as it can be sent, with where it came from if it was not foreseen."""
    if not isinstance(error, FedmixError):
        error.add_note(f"in a worker process:\n{traceback.format_exc()}")
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever its class does when it is copied
        told = FedmixError(f"{type(error).__name__}: {error}")
        told.add_note(traceback.format_exc())
        return told
    return error
