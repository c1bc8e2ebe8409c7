"""Commands on several processes of this machine (`--workers`), and what each of these does.

PyTorch's own launcher starts them. Each is given the command line; the first runs it, and the
others train with it when it asks them to.
"""

import errno
import logging
import os
import signal
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Sequence
from multiprocessing import active_children
from pathlib import Path
from runpy import run_module

from fedmix.core.devices import cores
from fedmix.core.errors import BadInput, Interrupted, Lost
from fedmix.core.ranks import ALONE, are_launched, end_with_parent, launched, training_with
from fedmix.core.signals import heard
from fedmix.runs.execute import unfinished
from fedmix.runs.progress import work
from fedmix.runs.run import Run
from fedmix.training.engines.threads import OURS

QUIET = "FEDMIX_WORKERS"  # set where `launch` says what became of a process
BUSY_SECONDS = 900  # for PyTorch's launcher to hear itself; it has a minute by default
CRASH_SECONDS = 1.0  # who was lost is noticed before those who miss it
TOO_MANY = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)
LEFT = "the same command goes on where it was"


def on_workers(runs: Sequence[Run], root: Path | None, jobs: int, restarts: int) -> None:
    """Start this command line on the processes that runs ask for, and exit as it does.

    Return where this process is one of them, or where one process is asked for. Where nobody asks
    for a number, it is chosen for the run with the most local steps.

    Raises:
        BadInput: Runs are to share the machine in two ways at once.
    """
    todo = [run for run in runs if unfinished(run)]
    workers = max((run.experiment.engine.processes or 0 for run in todo), default=1)
    if not workers and not are_launched() and jobs == 1:
        workers = max(todo, key=lambda run: run.experiment.rounds * work(run.experiment)).processes(
            root
        )
    if max(workers, int(are_launched()) + 1) > 1 and jobs > 1:
        raise BadInput(
            f"--jobs {jobs} trains several runs at once, and several processes train one; choose"
        )
    if workers > 1 and not are_launched():
        sys.exit(launch(workers, restarts, sys.argv))


def launch(workers: int, restarts: int, arguments: list[str]) -> int:
    """Run a command line on several processes; return its exit code.

    Ctrl-C is passed on to them; a second one ends them at once.

    Args:
        workers: The number of processes.
        restarts: How often to start again if one is killed or stops to answer.
        arguments: The command line.

    Raises:
        BadInput: This machine cannot start so many processes.
        Interrupted: It was asked to stop.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    logging.getLogger("torch.distributed.launcher").setLevel(logging.CRITICAL)
    if "OMP_NUM_THREADS" not in os.environ:
        os.environ |= {"OMP_NUM_THREADS": str(max(1, cores() // workers)), OURS: "1"}
    os.environ[QUIET] = str(workers)
    presses = 0

    def press() -> None:
        nonlocal presses
        presses += 1
        if presses > 1:
            raise KeyboardInterrupt
        for process in active_children():
            if process.pid:  # signals to 0 go to all of this group
                os.kill(process.pid, signal.SIGINT)

    for restart in range(restarts + 1):
        config = LaunchConfig(
            min_nodes=1, max_nodes=1, nproc_per_node=workers, run_id=uuid.uuid4().hex,
            rdzv_backend="c10d", rdzv_endpoint="localhost:0", local_addr="localhost",
            rdzv_configs={"read_timeout": BUSY_SECONDS},
            max_restarts=0, signals_to_handle="SIGTERM,SIGHUP",  # Ctrl-C is ours
        )  # fmt: skip
        try:
            with heard([signal.SIGINT], press):
                codes = elastic_launch(config, _work)(arguments, os.getpid())
            return int(codes[0])
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            code = failure.exitcode
        except SignalException:
            raise Interrupted("stopped") from None
        except OSError as error:
            if error.errno not in TOO_MANY:
                raise
            raise BadInput(
                f"{workers} processes cannot be started here ({error.strerror}); ask for fewer"
            ) from error
        how = (
            f"process {rank} of {workers} was killed by {failure.signal_name()}"
            if code < 0
            else "a process does not answer any more"
            if code == Lost.exit_code
            else f"process {rank} of {workers} ended early with exit code {code}"
        )
        why = ", perhaps for lack of memory" if code == -signal.SIGKILL else ""
        more = restarts - restart
        print(
            f"fedmix: {how}{why}; "
            + (f"starting again, {more} times at most" if more and not presses else LEFT),
            file=sys.stderr,
        )
        if presses:
            break
    return 1


def _work(arguments: list[str], parent: int) -> int:
    """Run the command line as one of the processes; return its exit code.

    A process that fails in a way that may pass exits by itself, and is not waited for.
    """
    end_with_parent(parent)
    sys.argv = arguments
    try:
        run_module("fedmix", run_name="__main__")
    except SystemExit as ended:
        if ended.code == Lost.exit_code:
            time.sleep(CRASH_SECONDS)
            raise
        return int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
        raise SystemExit(1) from None
    return 0


def as_rank(command: Callable[[], None]) -> None:
    """Run a command on the first process of a launch; let the others train with it until its end.

    Args:
        command: It ends with SystemExit.
    """
    ranks = launched()
    if ranks.rank:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first hears it too
        sys.exit(ranks.follow())
    try:
        with training_with(ALONE):
            command()
    except SystemExit as ended:
        ranks.dismiss(int(ended.code or 0))
        raise
