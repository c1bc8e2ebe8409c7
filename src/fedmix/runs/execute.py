"""Execute several runs, one after the other or in parallel processes."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from traceback import clear_frames
from typing import Any

import torch

from fedmix.core.errors import BadInput, FedmixError, Interrupted
from fedmix.core.ranks import ALONE, are_launched, launched
from fedmix.experiment.labels import titles
from fedmix.experiment.spec import Experiment
from fedmix.runs.interrupt import among, finish_round_on_ctrl_c
from fedmix.runs.jobs import Outcome, at_once, refused
from fedmix.runs.progress import Board, Progress
from fedmix.runs.run import Run, folder_of
from fedmix.runs.trackers import tracking


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
    track: str = "",
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
        track: Names of trackers that are told of every round, split by commas.
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
    names = titles([run.experiment for run in runs])
    if len(runs) > 1:
        names = [f"[{i}/{len(runs)}] {name}" for i, name in enumerate(names, 1)]
    todo, done = list[tuple[Run, str]](), list[tuple[Run, str]]()
    for run, title in zip(runs, names, strict=True):
        (todo if unfinished(run) else done).append((run, title))
    apart = jobs > 1 and len(todo) > 1
    why = refused([run.experiment for run, _ in todo], root) if apart else {}
    for run, _ in todo:
        if run.experiment.id in why:
            yield run, why[run.experiment.id]
    todo = [one for one in todo if one[0].experiment.id not in why]
    left = [(run.experiment, run.begun()) for run, _ in todo]
    with (
        finish_round_on_ctrl_c() as stopped,
        Board(left, ended=len(runs) - len(todo), quiet=quiet) as board,
    ):
        for run, title in done:
            try:
                outcome: Outcome = run.execute(command=command)  # reads what it gave
                board.note(f"{title}  done before")
            except Exception as error:  # of any kind, since the other runs go on
                outcome = error
            yield run, outcome
        if apart:
            yield from at_once(
                todo,
                min(jobs, len(todo)),
                root,
                board,
                command=command,
                track=track,
                stopped=stopped,
                gpus=gpus,
            )
            return
        for run, title in todo:
            if stopped():
                raise among(board.ended, board.runs)
            try:
                with (
                    Progress(title, run.experiment, run.begun(), board=board) as progress,
                    _with_others(run, root),
                    tracking(track, run.folder, run.experiment.values(), progress.update) as listen,
                ):
                    outcome = run.execute(
                        listen, begin=progress.begin, command=command, root=root, stopped=stopped
                    )
            except Interrupted:
                if len(runs) == 1:
                    raise
                raise among(board.ended, board.runs) from None
            except Exception as error:  # of any kind, since the other runs go on
                clear_frames(error.__traceback__)  # which hold the run's data
                outcome = error
            yield run, outcome


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


def raise_failures(failures: Mapping[Path, Exception], runs: int) -> None:
    """Raise one error for the runs that failed; return if there are none.

    Args:
        failures: The error of each run that failed, by its folder.
        runs: Number of all runs.

    Raises:
        BadInput: Every run was refused; the error itself if it is the same for all.
        Exception: The error of the only run.
        FedmixError: Some runs failed; it names each with its error.
    """
    errors = list(failures.values())
    all_refused = len(errors) == runs and all(isinstance(e, BadInput) for e in errors)
    if errors and (runs == 1 or (all_refused and len(set(map(str, errors))) == 1)):
        raise errors[0]
    if failures:
        told = (
            f"\n  {folder.name}: {error or type(error).__name__}"
            for folder, error in failures.items()
        )
        raise (BadInput if all_refused else FedmixError)(
            f"{len(failures)} of {runs} runs failed:{''.join(told)}"
        )
