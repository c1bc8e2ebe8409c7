"""`fedmix resume`."""

import os
from pathlib import Path
from typing import Annotated

import typer

from fedmix.cli import options

app = typer.Typer()


@app.command(epilog="Example:  fedmix resume runs/digits-fedmix-s0-1a2b3c4d5e")
def resume(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs that were stopped.")],
    rounds: options.Rounds = None,
    workers: options.Workers = None,
    max_restarts: options.Restarts = 0,
    data: options.Data = None,
    jobs: options.Jobs = 1,
    tensorboard: options.Board = False,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Go on with runs that were stopped or killed, or add rounds to finished ones."""
    from fedmix.cli.output import run_all
    from fedmix.runs.run import Run

    given = {"rounds": rounds, "engine.processes": workers}
    settings = {path: value for path, value in given.items() if value is not None}
    once = {os.path.realpath(folder): folder for folder in folders}.values()
    stopped = [Run.open(folder) for folder in once]
    runs = [Run(run.experiment.with_settings(settings), run.folder) for run in stopped]
    run_all(
        runs,
        data,
        quiet=quiet,
        as_json=as_json,
        tensorboard=tensorboard,
        jobs=jobs,
        restarts=max_restarts,
    )
