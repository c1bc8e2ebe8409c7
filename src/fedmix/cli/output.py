"""What several commands print and write: results of runs, reports and pictures.

It imports torch, so commands import it only when they run.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmix.cli.launch import on_workers
from fedmix.cli.options import command_line
from fedmix.core.errors import BadInput
from fedmix.core.files import PICTURES, check_picture
from fedmix.runs.execute import raise_failures, run_each
from fedmix.runs.progress import console, stdout_console, tell_written
from fedmix.runs.run import Run


def run_all(
    runs: Sequence[Run],
    root: Path | None,
    *,
    quiet: bool,
    as_json: bool,
    track: str,
    jobs: int,
    restarts: int = 0,
    gpus: Sequence[int] = (),
    refused: Mapping[Path, Exception] | None = None,
) -> list[Path]:
    """Execute runs, show the results of those that finished, and return the folders of all.

    Args:
        refused: Folders of further runs, with the errors for which these cannot be executed.

    Raises:
        FedmixError: a run failed; raised after all have ended and the others were shown.
    """
    on_workers(runs, root, jobs, restarts)
    ended = {
        run.folder: outcome
        for run, outcome in run_each(
            runs,
            root,
            command=command_line(),
            quiet=quiet or as_json,
            track=track,
            jobs=jobs,
            gpus=gpus,
        )
    }
    failures, summaries = dict(refused or {}), {}
    for run in runs:
        outcome = ended[run.folder]
        if isinstance(outcome, Exception):
            failures[run.folder] = outcome
        else:
            summaries[str(run.folder)] = outcome
    if summaries or not failures:
        show_results(summaries, quiet=quiet, as_json=as_json)
    raise_failures(failures, len(summaries) + len(failures))
    return [run.folder for run in runs]


def show_results(summaries: Mapping[str, Mapping[str, Any]], *, quiet: bool, as_json: bool) -> None:
    """Print summaries of finished runs, by folder, as JSON or as a table; warnings go to standard
    error.
    """
    if as_json:
        print(json.dumps(summaries, indent=1))
    elif summaries:
        from fedmix import report

        results = report.results_of(report.load_runs([Path(f) for f in summaries]))
        stdout_console().print(results.table().rich())
        if not quiet:
            console(sys.stdout).print("\n".join(summaries), soft_wrap=True)
        for folder, summary in summaries.items():
            if (head := summary.get("head")) is not None:
                console(sys.stdout).print(
                    f"{Path(folder).name}: accuracy {head['before']:.1%} before and "
                    f"{head['after']:.1%} after the last layer was set from statistics",
                    soft_wrap=True,
                )
            if "warning" in summary:
                console().print(f"{Path(folder).name}: {summary['warning']}", soft_wrap=True)


def check_outputs(
    *paths: Path | None,
    pictures: Sequence[Path | None] = (),
    png: Path | None = None,
    svg: Path | None = None,
) -> None:
    """Check that files can be written, before hours are spent on what goes into them.

    Args:
        paths: files that are no pictures; None is skipped, here and below.
        pictures: files whose ending chooses the format.
        png, svg: files that must end in .png and .svg.

    Raises:
        BadInput: an ending does not fit, a folder is missing, or two files are the same.
    """
    for picture in filter(None, (*pictures, png, svg)):
        check_picture(picture)
    for path, ending in ((png, ".png"), (svg, ".svg")):
        if path is not None and path.suffix.lower() != ending:
            raise BadInput(
                f"{path}: --{ending[1:]} writes a picture that ends in {ending}; choose this "
                "ending or the other option"
            )
    for path in filter(None, paths):
        if path.suffix.lower() in PICTURES:
            raise BadInput(
                f"{path}: what is written there is no picture; choose another ending than "
                f"{path.suffix}"
            )
    places = set()
    for path in filter(None, (*paths, *pictures, png, svg)):
        if path.is_dir():
            raise BadInput(f"{path} cannot be written: it is a folder; name a file")
        if not path.absolute().parent.is_dir():
            raise BadInput(
                f"{path} cannot be written: there is no folder {path.parent}; make it first"
            )
        place = path.parent.resolve() / path.name
        if place in places:
            raise BadInput(
                f"{path} is to be written twice; give each of the outputs a file of its own"
            )
        places.add(place)


def write_reports(
    folders: Sequence[Path],
    *,
    pictures: Sequence[Path | None],
    csv: Path | None,
    html: Path | None,
    baseline: str | None = None,
) -> None:
    """Write pictures, table and page of the runs in some folders; None is not written.

    Raises:
        BadInput: a folder holds no run, or a run that cannot be read, or no run is of the baseline.
    """
    if not any((*pictures, csv, html)):
        return
    from fedmix import report
    from fedmix.report.files import write

    runs = report.load_runs(list(folders))
    for picture in filter(None, pictures):
        report.draw(runs, picture)
    if csv:
        write(csv, report.results_of(runs).numbers().csv().encode())
    if html:
        report.write_html(runs, html, baseline=baseline)
    tell_written(*pictures, csv, html)
