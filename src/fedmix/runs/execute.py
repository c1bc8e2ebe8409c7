"""Execute several runs, one after the other or in parallel processes."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedmix.core.errors import BadInput, FedmixError, Interrupted
from fedmix.core.ranks import ALONE, are_launched, launched
from fedmix.experiment.spec import Experiment
from fedmix.runs.interrupt import finish_round_on_ctrl_c
from fedmix.runs.jobs import Outcome, at_once, refused
from fedmix.runs.progress import Progress
from fedmix.runs.run import Run, folder_of
from fedmix.runs.tensorboard import listening


def runs_in(out: Path, experiments: Sequence[Experiment]) -> list[Run]:
    """Return a run of each experiment, in a folder of `out` named by the experiment's id.

    Raises:
        BadInput: an experiment asks for more clients a round than its data have.
    """
    for one in experiments:
        one.check_clients()
    return [Run(e, folder_of(e, out)) for e in experiments]


def run_each(
    runs: Sequence[Run],
    root: Path | None,
    *,
    command: str,
    quiet: bool,
    tensorboard: bool = False,
    jobs: int = 1,
    gpus: Sequence[int] = (),
) -> Iterator[tuple[Run, Outcome]]:
    """Execute runs; yield each run when it ends, with its summary or its error.

    An error of one run does not stop the others. Ctrl-C finishes the current rounds.

    Args:
        runs: The runs; finished ones are not executed again.
        root: Folder with the hub's files; None downloads them.
        command: The command line that environment.json records.
        quiet: Show no progress.
        tensorboard: Also log to TensorBoard.
        jobs: How many runs to execute at once; if more than 1, each in a process of its own.
        gpus: Numbers of the GPUs that are handed out to them in turn; by default all share.

    Raises:
        BadInput: `jobs` is less than 1, or less than the GPUs.
        Interrupted: Ctrl-C was pressed before all runs had ended.
    """
    if jobs < 1:
        raise BadInput(f"--jobs {jobs}: at least one is needed")
    if jobs < len(gpus):
        raise BadInput(f"--jobs {jobs} uses {jobs} of {len(gpus)} devices; give --jobs {len(gpus)}")
    if gpus and max(gpus) >= (there := torch.cuda.device_count()):
        raise BadInput(f"device cuda:{max(gpus)} does not exist: this machine shows {there} GPUs")
    titles = [
        f"{e.data.name} {e.algorithm} seed {e.seed}" for e in (run.experiment for run in runs)
    ]
    widest = max(map(len, titles), default=0)
    here = [(run, titles[i].ljust(widest), f"{i + 1}/{len(runs)}") for i, run in enumerate(runs)]
    apart = [one for one in here if unfinished(one[0])] if jobs > 1 else []
    if len(apart) > 1:
        why = refused([run.experiment for run, _, _ in apart], root)
        yield from (
            (run, why[run.experiment.id]) for run, _, _ in apart if run.experiment.id in why
        )
        here = [one for one in here if one not in apart]
        apart = [one for one in apart if one[0].experiment.id not in why]
    else:
        apart = []
    with finish_round_on_ctrl_c() as stopped:
        for run, title, number in here:
            if stopped():
                raise Interrupted(
                    f"stopped before {run.folder.name}; the same command goes on where it was"
                )
            outcome: Outcome
            with Progress(title, run.experiment, number, quiet=quiet) as progress:
                try:
                    with (
                        _with_others(run, root),
                        listening(run.folder, progress.update, tensorboard) as listen,
                    ):
                        outcome = run.execute(listen, command=command, root=root, stopped=stopped)
                except Interrupted:
                    raise
                except Exception as error:  # of any kind, since the other runs go on
                    outcome = error
            yield run, outcome
        if apart:
            yield from at_once(
                apart,
                min(jobs, len(apart)),
                root,
                command=command,
                quiet=quiet,
                tensorboard=tensorboard,
                stopped=stopped,
                gpus=gpus,
            )


def _with_others(run: Run, root: Path | None) -> AbstractContextManager[None]:
    """Let the other processes of this launch, if any, take part in a run."""
    task = partial(_take_part, run.experiment.values(), run.folder, root)
    return (launched() if are_launched() else ALONE).joined(task)


def _take_part(values: dict[str, Any], folder: Path, root: Path | None) -> None:
    Run(Experiment.of(values), folder).execute(root=root)


def unfinished(run: Run) -> bool:
    """Whether a run has to be executed; a folder that cannot be read needs no process to fail."""
    try:
        return run.finished() is None
    except BadInput:
        return False


def raise_failures(failures: Sequence[tuple[Run, Exception]], runs: int) -> None:
    """Raise one error for the runs that failed; return if there are none.

    Args:
        failures: The runs that failed, with their errors.
        runs: Number of all runs.

    Raises:
        BadInput: Every run was refused; the error itself if it is the same for all.
        FedmixError: Some runs failed; it names each with its error.
    """
    all_refused = len(failures) == runs and all(isinstance(e, BadInput) for _, e in failures)
    if all_refused and len({str(error) for _, error in failures}) == 1:
        raise failures[0][1]
    if failures:
        told = "; ".join(
            f"{run.folder.name}: {error or type(error).__name__}" for run, error in failures
        )
        raise (BadInput if all_refused else FedmixError)(
            f"{len(failures)} of {runs} runs failed: {told}"
        )
