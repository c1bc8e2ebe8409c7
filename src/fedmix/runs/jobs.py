"""Several runs at once, each in a process of its own: `--jobs`.

A child gets its run as an argument and does what `Run.execute` does. It says every round's metrics,
and at last what became of the run, as lines of JSON on its standard output. Anything on its
standard input asks it to end after its round, with a checkpoint; the end of that input ends it at
once, so that no child outlives its parent, however that died.
"""

import json
import os
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Any

import torch
from rich.progress import TaskID

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
from fedmix.runs.progress import Progress, bars
from fedmix.runs.run import Run
from fedmix.runs.tensorboard import listening

ASK_SECONDS = 0.2  # between two looks at whether Ctrl-C was pressed
ERRORS = {
    kind.__name__: kind
    for kind in (Interrupted, Diverged, ClientFailure, Collapsed, BadInput, FedmixError)
}  # by nearness
Outcome = dict[str, Any] | Exception


def refused(experiments: Sequence[Experiment], root: Path | None) -> dict[str, Exception]:
    """By id, why some cannot be run; the data of the others are downloaded and decoded, once,
    before there are children.
    """
    why: dict[str, Exception] = {}
    loaded: set[str] = set()
    unreadable: dict[str, DataError] = {}
    for experiment in experiments:
        name, device = experiment.data.name, experiment.engine.device
        try:
            if not (
                device.startswith("cuda") and torch.cuda.is_available()
            ):  # to try a GPU would take some of its memory
                device_named(device)
            if name in unreadable:
                raise unreadable[name]
            if name not in loaded:
                experiment.build_data(root)
                loaded.add(name)
        except DataError as error:
            why[experiment.id] = unreadable[name] = error
        except Exception as error:  # whatever it is, the other runs go on
            why[experiment.id] = error
    return why


def at_once(
    runs: Sequence[tuple[Run, str, str]],
    jobs: int,
    root: Path | None,
    *,
    command: str,
    quiet: bool,
    tensorboard: bool,
    stopped: Callable[[], bool],
) -> Iterator[tuple[Run, Outcome]]:
    """Run up to `jobs` runs at a time; yield each run and its outcome as it ends."""
    waiting, running, asked, ended = list(reversed(runs)), set[_Child](), False, 0
    heard: SimpleQueue[tuple[_Child, Any]] = SimpleQueue()
    with bars(quiet=quiet) or nullcontext() as live:
        every = live.add_task("all runs", total=len(runs), now="") if live else TaskID(0)
        try:
            while running or (waiting and not stopped()):
                while waiting and len(running) < jobs and not stopped():
                    run, title, number = waiting.pop()
                    progress = Progress(title, run.experiment, number, quiet=quiet, among=live)
                    task = [
                        str(run.folder),
                        root and str(root),
                        run.experiment.values(),
                        command,
                        tensorboard,
                    ]
                    running.add(_Child(run, progress, task, _environment(run, jobs), heard))
                    if not live:
                        progress.note("started")
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
                        outcome = child.end()
                        if not isinstance(outcome, Interrupted):
                            ended += 1
                            yield child.run, outcome
                if live:
                    live.update(
                        every, completed=ended + sum(child.progress.share for child in running)
                    )
        finally:
            for child in running:
                child.kill()
    if ended < len(runs):
        raise Interrupted(
            f"stopped with {ended} of {len(runs)} missing runs done; the same command goes on "
            "where the others were"
        )


def _environment(run: Run, jobs: int) -> dict[str, str]:
    """Cores are divided among children, unless the caller has done so: those that train on a CPU,
    and those that compile.
    """
    share = str(max(1, cores() // jobs))
    training = {"OMP_NUM_THREADS": share} if run.experiment.engine.device.startswith("cpu") else {}
    return {"TORCHINDUCTOR_COMPILE_THREADS": share, **training, **os.environ}


class _Child:
    """A process with one run.

    It has a session of its own, so that Ctrl-C at a terminal reaches only its parent.
    """

    def __init__(
        self,
        run: Run,
        progress: Progress,
        task: list[Any],
        env: dict[str, str],
        heard: "SimpleQueue[tuple[_Child, Any]]",
    ) -> None:
        self.run, self.progress = run, progress
        self.last: list[Any] = ["", None]
        self.process = subprocess.Popen(
            # -P: nothing of the folder it is in
            [sys.executable, "-P", "-m", "fedmix.runs.jobs", json.dumps(task)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, start_new_session=True,
        )  # fmt: skip
        Thread(target=self._listen, args=(heard,), daemon=True).start()

    def _listen(self, heard: "SimpleQueue[tuple[_Child, Any]]") -> None:
        assert self.process.stdout
        with self.process.stdout as lines:
            for line in lines:
                with suppress(ValueError):  # the last line of one that was killed may be torn
                    heard.put((self, json.loads(line)))
        heard.put((self, None))

    def take(self, said: list[Any]) -> None:
        """A round's metrics, or what became of the run."""
        if said[0] == "round":
            self.progress.update(said[1])
        else:
            self.last = said

    def ask_to_stop(self) -> None:
        assert self.process.stdin
        with suppress(BrokenPipeError):
            os.write(self.process.stdin.fileno(), b".")

    def end(self) -> Outcome:
        """What became of the run, once there is no more to hear."""
        outcome = self._outcome(self.process.wait())
        self._close()
        self.progress.leave(str(outcome) if isinstance(outcome, Exception) else "")
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
        self.process.kill()
        self.process.wait()
        self._close()

    def _close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()


def _work(task: str) -> None:
    """The child's part."""
    says = os.fdopen(os.dup(1), "w")  # which nothing that this process starts holds open
    os.dup2(2, 1)  # what a library prints is no message
    warnings.formatwarning = format_warning
    stop = Event()
    Thread(target=_obey, args=(stop,), daemon=True).start()

    def say(kind: str, what: Any) -> None:
        with suppress(BrokenPipeError):  # the parent is gone, and this process is about to be
            print(json.dumps([kind, what]), file=says, flush=True)

    folder, root, values, command, tensorboard = json.loads(task)
    try:
        run = Run(Experiment.of(values), Path(folder))
        with listening(run.folder, lambda line: say("round", line), tensorboard) as listen:
            done = run.execute(
                listen, command=command, root=root and Path(root), stopped=stop.is_set
            )
        say("done", done)
    except FedmixError as error:
        say(
            next(name for name, kind in ERRORS.items() if isinstance(error, kind)),
            error.__reduce__()[1],
        )
    except Exception as error:  # whatever it is, the parent tells it, and other runs go on
        traceback.print_exc()
        say("FedmixError", [f"{type(error).__name__}: {error}"])


def _obey(stop: Event) -> None:
    while os.read(0, 1):
        stop.set()
    os._exit(1)


if __name__ == "__main__":
    _work(sys.argv[1])
