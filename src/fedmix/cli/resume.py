"""`fedmix resume`."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedmix.cli import options
from fedmix.core.errors import BadInput

app = typer.Typer()


@app.command(
    cls=options.Command,
    epilog="Examples:  fedmix resume runs    fedmix resume runs/digits-fedmix-s0-1a2b3c4d5e",
)
def resume(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders of runs that were stopped, or that hold such.")
    ],
    rounds: options.Rounds = None,
    workers: options.Workers = None,
    max_restarts: options.Restarts = 0,
    data: options.Data = None,
    jobs: options.Jobs = 1,
    track: options.Track = "",
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Go on with runs that were stopped or killed, or add rounds to finished ones.

    In a folder of runs, those that are done stay as they are, also those that diverged.
    """
    from fedmix.cli.output import run_all
    from fedmix.runs.progress import console
    from fedmix.runs.run import Run

    given = {"rounds": rounds, "engine.processes": workers}
    settings = {path: value for path, value in given.items() if value is not None}
    runs, refused = list[Run](), dict[Path, Exception]()
    for folder, alone in _run_folders(folders).items():
        try:
            if not alone and (why := _ended(folder)):
                if not (quiet or as_json):
                    console().print(f"{folder.name}  {why}", soft_wrap=True)
                continue
            stopped = Run.open(folder)
            runs.append(Run(stopped.experiment.with_settings(settings), folder))
        except BadInput as error:  # the other runs go on
            refused[folder] = error
    run_all(
        runs,
        data,
        quiet=quiet,
        as_json=as_json,
        track=track,
        jobs=jobs,
        restarts=max_restarts,
        refused=refused,
    )


def _ended(folder: Path) -> str:
    """Say how a run ended that `resume` does not execute among others; empty if it does.

    Raises:
        BadInput: It has not ended, and another command goes on with it; or it cannot be read.
    """
    from fedmix.core.files import read_toml
    from fedmix.experiment.values import LARGEST
    from fedmix.runs.failure import read_failure
    from fedmix.runs.summary import read_summary

    if (failure := read_failure(folder)) is not None:
        return f"{failure.kind} in round {failure.round} before: {failure.reason}"
    values = read_toml(folder / "experiment.toml", LARGEST, "restore it")
    federations = (folder / "federation.log").is_file()
    if not federations and "recorded" not in values:
        return ""
    if (read_summary(folder) or {}).get("rounds") == values.get("rounds"):
        return "done before"
    if federations:
        raise BadInput("it is a run of a federation; the command that started it goes on with it")
    return ""


def _run_folders(folders: Sequence[Path]) -> dict[Path, bool]:
    """Return each run folder once, and whether it was named itself."""
    from fedmix.runs.folder import run_folders

    found: dict[str, tuple[Path, bool]] = {}
    for folder in folders:
        there = list(run_folders(folder))
        if not there:
            raise BadInput(
                f"{folder} holds no run: there is no experiment.toml; give a folder that 'fedmix "
                "run' made, or one that holds such folders"
            )
        for run in there:
            found.setdefault(os.path.realpath(run), (run, run == folder))
    return dict(found.values())
