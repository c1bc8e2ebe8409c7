"""Several runs at once, each in a child process: `--jobs`.

A child gets its run as an argument and calls `Run.execute`. It writes that it begins, the metrics
of every round, and at last the outcome of the run, as lines of JSON to its standard output.
Anything on its standard input asks it to stop after its round, with a checkpoint. If that input is
closed, it exits at once, so that no child outlives its parent.
"""

import json
import os
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Any

import torch

from fedmix.core.devices import cores, device_named
from fedmix.core.errors import (
    BadInput,
    ClientFailure,
    Collapsed,
    DataError,
    Diverged,
    FedmixError,
    Interrupted,
    format_warning,
)
from fedmix.experiment.spec import Experiment
from fedmix.runs.interrupt import among
from fedmix.runs.progress import Board, Progress
from fedmix.runs.run import Run
from fedmix.runs.trackers import tracking
from fedmix.training.engines.threads import OURS

ASK_SECONDS = 0.2  # how often to check whether Ctrl-C was pressed
# subclasses before FedmixError: a child sends the first that fits
ERRORS = {
    kind.__name__: kind
    for kind in (Interrupted, Diverged, ClientFailure, Collapsed, BadInput, FedmixError)
}
Outcome = dict[str, Any] | Exception


def refused(experiments: Sequence[Experiment], root: Path | None) -> dict[str, Exception]:
    """Return the errors of the experiments that cannot run, by experiment id.

    The data of the others are downloaded and decoded, once, before children start.
    """
    why: dict[str, Exception] = {}
    loaded: set[str] = set()
    unreadable: dict[str, DataError] = {}
    for experiment in experiments:
        name, device = experiment.data.name, experiment.engine.device
        try:
            # trying a GPU would take some of its memory
            if not (device.startswith("cuda") and torch.cuda.is_available()):
                device_named(device)
            if name in unreadable:
                raise unreadable[name]
            if name not in loaded:
                experiment.build_data(root)
                loaded.add(name)
        except DataError as error:
            why[experiment.id] = unreadable[name] = error
        except Exception as error:  # of any kind, since the other runs go on
            why[experiment.id] = error
    return why


def at_once(
    runs: Sequence[tuple[Run, str]],
    jobs: int,
    root: Path | None,
    board: Board,
    *,
    command: str,
    track: str,
    stopped: Callable[[], bool],
    gpus: Sequence[int] = (),
) -> Iterator[tuple[Run, Outcome]]:
    """Execute up to `jobs` runs at a time; yield each run with its outcome when it ends.

    Args:
        runs: Each run with its title.
        jobs: How many run at a time.
        root: Folder with the hub's files; None downloads them.
        board: Where they are shown.
        command: The command line that environment.json records.
        track: Names of trackers that are told of every round, split by commas.
        stopped: Returns whether Ctrl-C was pressed.
        gpus: Numbers of the GPUs that are handed out to runs in turn; by default all share.

    Raises:
        Interrupted: Ctrl-C was pressed before all runs had ended.
    """
    waiting, running, asked = list(reversed(runs)), set[_Child](), False
    heard: SimpleQueue[tuple[_Child, Any]] = SimpleQueue()
    free = [gpus[i % len(gpus)] if gpus else None for i in reversed(range(jobs))]
    try:
        while running or (waiting and not stopped()):
            while waiting and len(running) < jobs and not stopped():
                run, title = waiting.pop()
                progress = Progress(title, run.experiment, run.begun(), board=board)
                values = run.experiment.values()
                task = [str(run.folder), root and str(root), values, command, track]
                gpu = free.pop()
                running.add(_Child(run, progress, task, _environment(run, jobs, gpu), heard, gpu))
            if stopped() and not asked:
                asked = True
                for child in running:
                    child.ask_to_stop()
            with suppress(Empty):
                child, said = heard.get(timeout=ASK_SECONDS)
                if said is not None:
                    child.take(said)
                else:
                    running.remove(child)
                    free.append(child.gpu)
                    outcome = child.end()
                    if not isinstance(outcome, Interrupted):
                        yield child.run, outcome
    finally:
        for child in running:
            child.kill()
    if board.ended < board.runs:
        raise among(board.ended, board.runs)


def _environment(run: Run, jobs: int, gpu: int | None = None) -> dict[str, str]:
    """Return a child's environment, which divides the cores among children; it may have one GPU.

    It sets the threads of training on a CPU and of compilation, unless the caller has set them.
    """
    share = str(max(1, cores() // jobs))
    training = {}
    if run.experiment.engine.device.startswith("cpu") and "OMP_NUM_THREADS" not in os.environ:
        training = {"OMP_NUM_THREADS": share, OURS: "1"}
    mine = {}
    if gpu is not None:  # one of those that this process sees, by number
        seen = os.environ.get("CUDA_VISIBLE_DEVICES")
        mine = {"CUDA_VISIBLE_DEVICES": seen.split(",")[gpu].strip() if seen else str(gpu)}
    return {"TORCHINDUCTOR_COMPILE_THREADS": share, **training, **os.environ, **mine}


class _Child:
    """A process that executes one run.

    It has a session of its own, so that Ctrl-C at a terminal reaches only its parent.
    """

    def __init__(
        self,
        run: Run,
        progress: Progress,
        task: list[Any],
        env: dict[str, str],
        heard: "SimpleQueue[tuple[_Child, Any]]",
        gpu: int | None,
    ) -> None:
        self.run, self.progress, self.gpu = run, progress, gpu
        self.last: list[Any] = ["", None]
        self.process = subprocess.Popen(
            # -P: import nothing from the current folder
            [sys.executable, "-P", "-m", "fedmix.runs.jobs", json.dumps(task)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, start_new_session=True,
        )  # fmt: skip
        Thread(target=self._listen, args=(heard,), daemon=True).start()

    def _listen(self, heard: "SimpleQueue[tuple[_Child, Any]]") -> None:
        assert self.process.stdout
        with self.process.stdout as lines:
            for line in lines:
                with suppress(ValueError):  # the last line of a killed child may be incomplete
                    heard.put((self, json.loads(line)))
        heard.put((self, None))

    def take(self, said: list[Any]) -> None:
        """Handle a message: the run begins, the metrics of a round, or the outcome of the run."""
        if said[0] == "begin":
            self.progress.begin()
        elif said[0] == "round":
            self.progress.update(said[1])
        else:
            self.last = said

    def ask_to_stop(self) -> None:
        """Ask the child to stop after its round."""
        assert self.process.stdin
        with suppress(BrokenPipeError):
            os.write(self.process.stdin.fileno(), b".")

    def end(self) -> Outcome:
        """Wait for the process to end, and return the outcome of the run."""
        outcome = self._outcome(self.process.wait())
        self._close()
        self.progress.leave(outcome if isinstance(outcome, Exception) else None)
        return outcome

    def _outcome(self, code: int) -> Outcome:
        kind, said = self.last
        if kind == "done":
            return dict(said)
        if kind in ERRORS:
            return ERRORS[kind](*said)
        how = (
            f"was killed by signal {-code} ({signal.strsignal(-code)})"
            if code < 0
            else f"ended early with exit code {code}"
        )
        why = ", perhaps for lack of memory" if code == -signal.SIGKILL else ""
        return FedmixError(f"its process {how}{why}; the same command goes on where it was")

    def kill(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.wait()
        self._close()

    def _close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()


def _work(task: str) -> None:
    """Execute a run in the child process."""
    says = os.fdopen(os.dup(1), "w")  # a copy, which processes started here do not inherit
    os.dup2(2, 1)  # so that what a library prints is not taken for a message
    warnings.formatwarning = format_warning
    stop = Event()
    Thread(target=_obey, args=(stop,), daemon=True).start()

    def say(kind: str, what: Any) -> None:
        with suppress(BrokenPipeError):  # the parent is gone, and this process ends soon
            print(json.dumps([kind, what]), file=says, flush=True)

    folder, root, values, command, track = json.loads(task)
    try:
        run = Run(Experiment.of(values), Path(folder))
        with tracking(track, run.folder, values, lambda line: say("round", line)) as listen:
            done = run.execute(
                listen,
                begin=lambda: say("begin", None),
                command=command,
                root=root and Path(root),
                stopped=stop.is_set,
            )
        say("done", done)
    except FedmixError as error:
        say(
            next(name for name, kind in ERRORS.items() if isinstance(error, kind)),
            error.__reduce__()[1],
        )
    except Exception as error:  # of any kind: the parent shows it, and other runs go on
        traceback.print_exc()
        say("FedmixError", [f"{type(error).__name__}: {error}"])


def _obey(stop: Event) -> None:
    """Set `stop` when the parent asks for it; exit when the parent is gone."""
    while os.read(0, 1):
        stop.set()
    os._exit(1)


if __name__ == "__main__":
    _work(sys.argv[1])
