"""`fedmix report`."""

from pathlib import Path
from typing import Annotated

import typer

from fedmix.cli import options

app = typer.Typer()


@app.command(epilog="Example:  fedmix report runs -o report.html")
def report(
    folders: Annotated[
        list[Path], typer.Argument(help="Run folders, packed runs, or folders that hold them.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path(
        "report.html"
    ),
    baseline: Annotated[
        str | None,
        typer.Option(help="Algorithm, or row, with which others are compared (default: fedavg)."),
    ] = None,
    png: options.Curves = None,
    svg: options.Curves = None,
    csv: options.Results = None,
) -> None:
    """Write one HTML page, which works offline, with curves and tables of these runs."""
    from fedmix.cli.output import check_outputs, write_reports

    check_outputs(output, csv, png=png, svg=svg)
    write_reports(folders, pictures=(png, svg), csv=csv, html=output, baseline=baseline)
