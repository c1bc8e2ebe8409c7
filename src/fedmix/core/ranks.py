"""The processes that train one federation together, called ranks, on torch.distributed.

Every rank runs the same program with the same arguments. So plans, pools and weights need not be
sent: ranks meet to agree on what became of each one's share, and to add up sums. A launcher starts
them and gives each its number (`fedmix run --workers`, torchrun, or anything that sets RANK,
WORLD_SIZE, MASTER_ADDR and MASTER_PORT).
"""

import atexit
import importlib
import os
import pickle
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist

from fedmix.core.errors import BadInput, FedmixError, FedmixWarning, Lost, first_line

WATCH_SECONDS = 0.5  # how often a rank checks that its launcher is alive
TIMEOUT_SECONDS = 1800.0  # how long a rank waits for another, unless FEDMIX_TIMEOUT says so


class Meeting:
    """A point at which ranks agree: what each one brings (`mine`), and afterwards that of all."""

    def __init__(self) -> None:
        self.mine: Any = None
        self.all: list[Any] = []


class Ranks:
    """The ranks of a launch, as one of them sees them; by default a process that is alone.

    An error that one rank brings to a meeting is raised on all of them.

    Args:
        rank: The number of this process, from 0.
        count: The number of processes.
    """

    def __init__(self, rank: int = 0, count: int = 1) -> None:
        self.rank, self.count = rank, count
        self._known: BaseException | None = None  # the last error that all ranks have
        self._said: set[str] = set()  # warnings that were shown
        self._busy = False  # whether others train with this one
        self._apart: bool | None = None  # whether every rank has a GPU of its own

    @contextmanager
    def joined(self, task: Callable[[], object]) -> Iterator[None]:
        """Run a block on the first rank in which others train with it: they call `task`."""
        if self.count == 1:
            yield
            return
        self.agree(task)
        self._busy = True
        try:
            with training_with(self):
                yield
        except Exception:
            self._busy = False
            raise
        self._busy = False  # else the others are no longer where this one thinks

    def follow(self) -> int:
        """Call what the first rank sends, until it ends; return its exit code.

        Raises:
            Lost: Another rank is gone.
        """
        while not isinstance(task := self.first_sends(), int):
            try:
                with training_with(self):
                    task()
            except Exception as error:
                if isinstance(error, Lost) or not self._is_known(error):
                    raise  # else the first has it too, and may go on with another run
        return task

    def dismiss(self, code: int) -> None:
        """End `follow` on the other ranks, with this exit code."""
        if not self._busy:
            with suppress(Lost):
                self.agree(code)

    def share(self, steps: Sequence[int]) -> list[int]:
        """Return the positions of this rank's clients, given the numbers of steps of all."""
        return divided(steps, self.count)[self.rank]

    @contextmanager
    def agreeing(self) -> Iterator[Meeting]:
        """Run a block on all ranks, then meet: an error on one rank is raised on all.

        What the block sets as `mine` is in `all` afterwards, by rank. Warnings of all ranks are
        shown once, by the first.
        """
        meeting = Meeting()
        if self.count == 1:
            yield meeting
            meeting.all = [meeting.mine]
            return
        error = None
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("default", FedmixWarning)
            try:
                yield meeting
            except Exception as raised:  # of any kind, since the others wait
                error = raised
        texts = [str(w.message) for w in said if issubclass(w.category, FedmixWarning)]
        meeting.all = self._meet(meeting.mine, error, texts)

    def agree(self, mine: object = None) -> list[Any]:
        """Return what all ranks bring, by rank."""
        return [mine] if self.count == 1 else self._meet(mine)

    def compare(self, mine: Mapping[str, object]) -> None:
        """Raise BadInput on all ranks if they differ in one of these named values."""
        first, *others = self.agree(mine)
        for rank, theirs in enumerate(others, 1):
            for what in first:
                if first[what] != theirs.get(what):
                    self._known = BadInput(
                        f"processes 0 and {rank} have different {what}; every process must make "
                        "the same federation, its model from a seed (models.initialised)"
                    )
                    raise self._known

    def from_first(self, make: Callable[[], Any]) -> Any:
        """Return what `make` returns on the first rank; the others wait for it."""
        with self.agreeing() as meeting:
            if self.rank == 0:
                meeting.mine = make()
        return meeting.all[0]

    def first_sends(self, value: Any = None) -> Any:
        """Return the value of the first rank."""
        return self.agree(value)[0]

    @contextmanager
    def leading(self) -> Iterator[None]:
        """Run a block on the first rank. If it fails, the others learn why at the next meeting."""
        try:
            yield
        except Exception as error:
            if self.count > 1 and not self._is_known(error):
                with suppress(Exception):  # that very error, or nobody is there any more
                    self._meet(None, error)
            raise

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their sums over all ranks, which are the same bits on each."""
        if self.count == 1:
            return
        flat = torch.cat([t.reshape(-1) for t in tensors])
        if flat.is_cuda and not self._on_gpus_of_their_own(flat.device):
            flat = flat.cpu()
        with _losing():
            dist.all_reduce(flat)
        for tensor, part in zip(
            tensors, torch.split(flat, [t.numel() for t in tensors]), strict=True
        ):
            tensor.copy_(part.view_as(tensor))

    def _on_gpus_of_their_own(self, device: torch.device) -> bool:
        """Whether NCCL can add: it takes one process a GPU."""
        if self._apart is None:
            mine = str(torch.cuda.get_device_properties(device).uuid)
            self._apart = dist.is_nccl_available() and len(set(self.agree(mine))) == self.count
        return self._apart

    def _meet(
        self, mine: object, error: Exception | None = None, said: Sequence[str] = ()
    ) -> list[Any]:
        every: list[Any] = [None] * self.count
        try:
            with _losing():
                dist.all_gather_object(every, (mine, error and _sendable(error, self.rank), said))
        except Lost as lost:
            self._known = lost
            raise
        if self.rank == 0:
            for text in dict.fromkeys(text for _, _, texts in every for text in texts):
                if text not in self._said:
                    warnings.warn(text, FedmixWarning, stacklevel=4)
            self._said |= {text for _, _, texts in every for text in texts}
        for rank, (_, raised, _) in enumerate(every):
            if raised is not None:
                self._known = error if error is not None and rank == self.rank else raised
                raise self._known
        return [value for value, _, _ in every]

    def _is_known(self, error: BaseException | None) -> bool:
        """Whether all ranks have this error, or the one that it was made from."""
        while error is not None:
            if error is self._known:
                return True
            error = error.__cause__ or error.__context__
        return False


ALONE = Ranks()
_launched: Ranks | None = None
_here: Ranks | None = None


def are_launched() -> bool:
    """Whether a launcher has started this process as one of several."""
    return _whole("WORLD_SIZE") > 1


def here() -> Ranks:
    """Return the ranks with which this process trains: those of its launch, or it alone."""
    if _here is not None:
        return _here
    return launched() if are_launched() or dist.is_initialized() else ALONE


@contextmanager
def training_with(ranks: Ranks) -> Iterator[None]:
    """Let what is made in this block train with these ranks."""
    global _here
    before, _here = _here, ranks
    try:
        yield
    finally:
        _here = before


def launched() -> Ranks:
    """Meet the other processes of this launch, once, and return the ranks.

    Raises:
        BadInput: The launcher's variables are incomplete.
        Lost: The others were not reached.
    """
    global _launched
    if _launched is None:
        if not dist.is_initialized():
            _start_group()
        _launched = Ranks(dist.get_rank(), dist.get_world_size())
        if _launched.rank:  # the first shows them for all
            warnings.simplefilter("ignore", FedmixWarning)
        if "TORCHELASTIC_RUN_ID" in os.environ:
            end_with_parent(os.getppid())
    return _launched


def end_with_parent(pid: int) -> None:
    """Exit when this process's parent is no longer `pid`; checked by a thread."""

    def watch() -> None:
        while os.getppid() == pid:
            time.sleep(WATCH_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def divided(steps: Sequence[int], count: int) -> list[list[int]]:
    """Divide clients with these numbers of steps into `count` shares of positions.

    The longest are dealt out first, in alternating direction. So shares take about as long, and
    have about as many clients, since engines compile their step for a number of clients.

    >>> divided([5, 1, 4, 2, 3], 2)
    [[0, 1, 3], [2, 4]]
    """
    shares: list[list[int]] = [[] for _ in range(count)]
    for i, client in enumerate(np.argsort([-s for s in steps], kind="stable").tolist()):
        lap, place = divmod(i, count)
        shares[place if lap % 2 == 0 else count - 1 - place].append(client)
    return [sorted(share) for share in shares]


def _start_group() -> None:
    size = os.environ["WORLD_SIZE"]
    if not (count := _whole("WORLD_SIZE")):
        raise BadInput(f"WORLD_SIZE={size!r} is no number of processes")
    missing = [n for n in ("RANK", "MASTER_ADDR", "MASTER_PORT") if n not in os.environ]
    if missing:
        raise BadInput(
            f"WORLD_SIZE is {size}, and {missing[0]} is not set; start this with torchrun, or set "
            "both"
        )
    for name, end in (("RANK", count), ("MASTER_PORT", 1 << 16)):
        if _whole(name, missing=end) >= end:
            raise BadInput(f"{name}={os.environ[name]!r} is no whole number below {end}")
    nccl = torch.cuda.is_available() and dist.is_nccl_available()
    seconds = os.environ.get("FEDMIX_TIMEOUT", TIMEOUT_SECONDS)
    try:
        timeout = timedelta(seconds=float(seconds))
        if timeout <= timedelta():
            raise ValueError
    except (ValueError, OverflowError):
        raise BadInput(f"FEDMIX_TIMEOUT={seconds!r} is no number of seconds above 0") from None
    # Imported later, by a compiler, it keeps the group in its functions' defaults for ever, and the
    # group's threads with it.
    importlib.import_module("torch.distributed.nn.functional")
    with _losing():
        dist.init_process_group("cpu:gloo,cuda:nccl" if nccl else "gloo", timeout=timeout)
    atexit.register(_end_group)


def _end_group() -> None:
    """End the group's threads before Python ends: one that needs Python then aborts the process."""
    if dist.is_initialized():  # a script may have ended it
        dist.destroy_process_group()


@contextmanager
def _losing() -> Iterator[None]:
    """Raise Lost where torch.distributed fails, which it does if another rank is gone."""
    try:
        yield
    except RuntimeError as error:
        raise Lost(
            f"another process of this run has ended, or does not answer ({first_line(error)}); "
            "the same command goes on where it was"
        ) from error


def _sendable(error: Exception, rank: int) -> Exception:
    """Return the error in a form that can be sent, with its traceback if it was not expected."""
    if not isinstance(error, FedmixError):
        error.add_note(f"on rank {rank}:\n{traceback.format_exc()}")
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # its class may do anything when it is unpickled
        told = FedmixError(f"{type(error).__name__}: {error}")
        told.add_note(traceback.format_exc())
        return told
    return error


def _whole(name: str, missing: int = 0) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else missing
