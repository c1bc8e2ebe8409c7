"""`fedmix reproduce`."""

import json
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from fedmix.cli import options
from fedmix.core.errors import BadInput, Collapsed, Diverged
from fedmix.core.nearest import choice

if TYPE_CHECKING:
    from fedmix.experiment.sections import ModelSpec
    from fedmix.paper.comparison import Comparison
    from fedmix.paper.study import Study
    from fedmix.report.tables import Table
    from fedmix.runs.store import Packed

app = typer.Typer()


@app.command(
    epilog="Example:  fedmix reproduce main --columns cifar10 --rows fedavg,naivemix,fedmix "
    "--seeds 3 --device cuda"
)
def reproduce(
    table: Annotated[
        str | None,
        typer.Argument(help="A table or figure of the paper (--list shows them), or beyond."),
    ] = None,
    rows: Annotated[
        str | None, typer.Option(help="Only these rows, such as fedavg,fedmix.")
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(help="Only these columns, by name or by data set, such as cifar10."),
    ] = None,
    seed: Annotated[int, typer.Option(help="The (first) seed.")] = 0,
    seeds: options.Seeds = 1,
    rounds: options.Rounds = None,
    scale: Annotated[
        str,
        typer.Option(
            help="paper, or small: minutes a run on a laptop, for the direction of a trend."
        ),
    ] = "paper",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A setting of all its experiments, by dotted path."
        ),
    ] = None,
    score: Annotated[
        str | None,
        typer.Option(
            help="Which accuracy: last, best, last-ten, or late (mean of the last quarter of the "
            "rounds); by default last, and late for beyond and at small scale."
        ),
    ] = None,
    engine: options.Engine = None,
    device: options.Device = None,
    workers: options.Workers = None,
    data: options.Data = None,
    out: options.Out = Path("runs"),
    jobs: options.Jobs = 1,
    run: Annotated[
        bool,
        typer.Option("--run/--no-run", help="Run what is missing, or show only what is there."),
    ] = True,
    html: options.Report = None,
    png: Annotated[Path | None, typer.Option(help="Write the chart there (.png or .svg).")] = None,
    markdown: options.Results = None,
    listing: Annotated[
        bool,
        typer.Option(
            "--list",
            help="The tables, or the one given with its rows and columns, their runs and about how "
            "long they take here.",
        ),
    ] = False,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Run a table of the paper, and show ours beside its numbers.

    Finished runs are used again, stopped ones go on. The tables beyond and frontier are not the
    paper's: their runs take some minutes of a core each, and there are many; --list says how many.
    """
    from fedmix.cli.output import check_outputs
    from fedmix.paper import STUDIES, TABLES

    if table is None and not listing:
        raise BadInput(
            f"give a table, one of {', '.join(STUDIES)}; 'fedmix reproduce --list' says what they "
            "are"
        )
    fixed = {
        "rounds": rounds,
        "engine.name": engine,
        "engine.device": device,
        "engine.processes": workers,
    }
    studies = [
        _study(name, rows, columns, seed, seeds, scale, settings or [], fixed)
        for name in (list(TABLES) if table is None else [table])
    ]
    if listing:
        _list_tables(studies, device or "cpu", as_json=as_json)
        return
    check_outputs(html, markdown, pictures=(png,))
    [study] = studies
    _reproduce(
        study,
        out,
        data,
        score=score,
        run=run,
        html=html,
        png=png,
        markdown=markdown,
        quiet=quiet,
        as_json=as_json,
        jobs=jobs,
    )


def _study(
    table: str,
    rows: str | None,
    columns: str | None,
    seed: int,
    seeds: int,
    scale: str,
    settings: Sequence[str],
    fixed: Mapping[str, Any],
) -> "Study":
    """Return a table with its rows, columns, seeds, scale and settings chosen by the options."""
    from fedmix.experiment.sweep import parse_setting
    from fedmix.paper import named
    from fedmix.paper.study import Scale, Study

    if seeds < 1:
        raise BadInput(f"--seeds {seeds}: at least one is needed")
    if scale not in get_args(Scale):
        raise BadInput(f"--scale {scale!r} is unknown; choose paper or small")
    changes = {path: value for path, value in fixed.items() if value is not None}
    for setting in settings:
        (path, value), *more = parse_setting(setting)
        if more:
            raise BadInput(
                f"--set {path} has several values, but each cell of a table is one experiment; "
                "give one"
            )
        if path in changes:
            raise BadInput(f"{path} is given twice, by --set and before; give it once")
        changes[path] = value
    chosen = named(table).select(rows, columns)
    return Study(
        chosen, tuple(range(seed, seed + seeds)), "small" if scale == "small" else "paper", changes
    )


def _reproduce(
    study: "Study",
    out: Path,
    root: Path | None,
    *,
    score: str | None,
    run: bool,
    html: Path | None,
    png: Path | None,
    markdown: Path | None,
    quiet: bool,
    as_json: bool,
    jobs: int,
) -> None:
    """Run what is missing, print the table, and write the files that were asked for."""
    from fedmix.paper.metrics import PROTOCOLS
    from fedmix.runs.execute import raise_failures
    from fedmix.runs.progress import console

    score = study.score if score is None else score
    if score not in PROTOCOLS:
        raise BadInput(f"--score {score!r} is unknown; {choice(score, PROTOCOLS)}")
    failures = _run_missing(study, out, root, quiet=quiet or as_json, jobs=jobs) if run else {}
    experiments = study.experiments()
    if failures and len(failures) == len(experiments):
        raise next(iter(failures.values()))
    from fedmix.paper import show
    from fedmix.paper.comparison import compare
    from fedmix.paper.outcome import begun

    comparison = compare(study, out, next(p for p in PROTOCOLS if p == score))
    runs = [found for e in experiments if (found := begun(e, out)) is not None]
    if html and not runs:
        raise BadInput(f"--html {html} would show runs, but there is {comparison.absent}")
    if as_json:
        print(show.as_json(comparison), end="")
    else:
        console(sys.stdout).print(show.terminal(comparison))
    _write(comparison, runs, html, png, markdown)
    raise_failures(failures, len(experiments))


def _run_missing(
    study: "Study", out: Path, root: Path | None, *, quiet: bool, jobs: int
) -> dict[Path, Exception]:
    """Execute runs that are not finished, not in a store and not known to diverge or collapse.

    Runs that diverge or collapse are recorded; those that fail otherwise are returned.
    """
    from fedmix.cli.launch import on_workers
    from fedmix.paper.outcome import outcome
    from fedmix.runs.execute import run_each, runs_in
    from fedmix.runs.progress import console

    failures = {}
    todo = runs_in(out, [e for e in study.experiments() if not outcome(e, out).final])
    on_workers(todo, root, jobs, 0)
    for run, result in run_each(todo, root, command=options.command_line(), quiet=quiet, jobs=jobs):
        if not isinstance(result, Exception):
            if study.table.after:
                study.table.after(run, root)
        elif isinstance(result, Diverged | Collapsed):
            if quiet or len(todo) == 1:  # of several, the run's last line has said it
                console().print(f"{run.folder.name}: {result}", soft_wrap=True)
        else:
            failures[run.folder] = result
    return failures


def _write(
    comparison: "Comparison",
    runs: Sequence["Path | Packed"],
    html: Path | None,
    png: Path | None,
    markdown: Path | None,
) -> None:
    """Write the table, the chart and the page; None is not written."""
    from fedmix import report
    from fedmix.paper import picture, show
    from fedmix.report.files import write
    from fedmix.report.load import load
    from fedmix.runs.progress import tell_written

    if markdown:
        write(markdown, show.markdown(comparison).encode())
    if png:
        picture.draw(comparison, png)
    if html:
        report.write_html([load(run) for run in runs], html, picture.lead(comparison))
    tell_written(markdown, png, html)


def _list_tables(studies: Sequence["Study"], device: str, *, as_json: bool) -> None:
    """Print each table with its number of runs and the time they would take on this machine; of
    several tables also the total.
    """
    from fedmix.paper.estimate import HOW, duration, measure, seconds
    from fedmix.runs.progress import console

    @cache
    def step(name: str, model: "ModelSpec", fedmix: bool) -> float:
        if not as_json:
            console().print(
                f"measuring a local step of {name}, {model.name}, "
                f"{'FedMix' if fedmix else 'FedAvg'}"
            )
        return measure(name, model, fedmix, device)

    lines = [(s.table.name, s.table.title, s.experiments()) for s in studies]
    if len(lines) > 1:
        every = {e.id: e for *_, experiments in lines for e in experiments}
        lines.append(("all", "Every table; shared runs are run once", list(every.values())))
    how = HOW.format(device=device)
    if as_json:
        tables = {
            name: {"title": title, "runs": len(e), "seconds": round(seconds(e, step))}
            for name, title, e in lines
        }
        print(json.dumps({"how": how, "tables": tables}, indent=1, ensure_ascii=False))
        return
    from fedmix.report.tables import Column, Table

    count = len(studies[0].seeds)
    with_seeds = "With one seed" if count == 1 else f"With {count} seeds"
    names = ("table", "what", "runs", "time")
    shown = Table(
        [Column(name, right=False, wrap=name == "what") for name in names],
        [[name, title, str(len(e)), duration(seconds(e, step))] for name, title, e in lines],
        caption=f"{with_seeds}. {how}",
    )
    console(sys.stdout).print(shown.rich())
    if len(studies) == 1:
        for part in ("row", "column"):
            console(sys.stdout).print(_parts(studies[0].table.name, part).rich())


def _parts(table: str, what: str) -> "Table":
    """Return the rows or columns of a table by name; not all of them may run by default."""
    from fedmix.paper import named
    from fedmix.report.tables import Column, Table

    parts = named(table).rows if what == "row" else named(table).columns
    lines = [[part.name, part.title, "if named" if part.extra else "yes"] for part in parts]
    columns = (what, "what", "runs")
    return Table([Column(name, right=False, wrap=name == "what") for name in columns], lines)
