"""`fedmix pack`."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()


@app.command(epilog="Example:  fedmix pack runs -o results")
def pack(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold them.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The folder of the store; runs are added to it.")
    ],
) -> None:
    """Pack finished runs into a few small files, to publish them.

    `report` and `reproduce --no-run` read them like run folders. Kept are
    settings, machine, command, scores of tested rounds and what clients hold.
    Weights and pictures are left out.
    """
    from fedmix.report.load import find_runs, load
    from fedmix.runs import store
    from fedmix.runs.progress import console

    runs = find_runs(folders)
    for run in runs:
        load(run)  # what cannot be reported is not packed
    files, left_out = store.pack(runs, output)
    for folder in left_out:
        console().print(f"left out, since it is not done: {folder}", soft_wrap=True)
    count = len(store.packed_in(output))
    console().print(
        f"{output} holds {count} run{'s' if count > 1 else ''} in "
        f"{len(files)} file{'s' if len(files) > 1 else ''}",
        soft_wrap=True,
    )
