"""What `fedmix reproduce` does."""

import json
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_args

from fedmix.cli.commands import parsed, run_each, runs_in, tell_failures
from fedmix.core.errors import BadInput, Collapsed, Diverged
from fedmix.paper import TABLES, named
from fedmix.paper.comparison import Comparison, compare
from fedmix.paper.metrics import PROTOCOLS
from fedmix.paper.outcome import outcome
from fedmix.paper.study import Scale, Study
from fedmix.runs.progress import console, tell_written
from fedmix.runs.run import Run


def asked_for(table: str | None, *, every: bool) -> Sequence[str]:
    """The names of the tables that a command line asks for: the one given, or all where none has to
    be.
    """
    if table is None and not every:
        raise BadInput(
            f"give a table, one of {', '.join(TABLES)}; 'fedmix reproduce --list' says what they "
            "are"
        )
    return list(TABLES) if table is None else [table]


def study(
    table: str,
    rows: str | None,
    columns: str | None,
    seed: int,
    seeds: int,
    scale: str,
    settings: Sequence[str],
    fixed: Mapping[str, Any],
) -> Study:
    """What a command line asks for."""
    if seeds < 1:
        raise BadInput(f"--seeds {seeds}: at least one is needed")
    if scale not in get_args(Scale):
        raise BadInput(f"--scale {scale!r} is unknown; choose paper or small")
    changes = {path: value for path, value in fixed.items() if value is not None}
    for setting in settings:
        (path, value), *more = parsed(setting)
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


def reproduce(
    study: Study,
    out: Path,
    root: Path | None,
    *,
    score: str,
    run: bool,
    html: Path | None,
    png: Path | None,
    markdown: Path | None,
    quiet: bool,
    as_json: bool,
    jobs: int = 1,
) -> None:
    """Run what is missing, then print the table and write what was asked for."""
    if score not in PROTOCOLS:
        raise BadInput(f"--score {score!r} is unknown; choose one of {', '.join(PROTOCOLS)}")
    failures = _run_missing(study, out, root, quiet=quiet or as_json, jobs=jobs) if run else []
    experiments = study.experiments()
    if failures and len(failures) == len(experiments):
        raise failures[0][1]
    from fedmix.paper import show

    comparison = compare(study, out, next(p for p in PROTOCOLS if p == score))
    begun = [
        folder
        for folder in (out / e.id for e in experiments)
        if (folder / "metrics.jsonl").is_file()
    ]
    if html and not begun:
        raise BadInput(f"--html {html} would show runs, but there is {comparison.absent}")
    if as_json:
        print(show.as_json(comparison), end="")
    else:
        console(sys.stdout).print(show.terminal(comparison))
    _write(comparison, begun, html, png, markdown)
    tell_failures(failures, len(experiments))


def _run_missing(
    study: Study, out: Path, root: Path | None, *, quiet: bool, jobs: int
) -> list[tuple[Run, Exception]]:
    """Run what is neither finished nor known to be lost; what failed in another way."""
    failures = []
    todo = runs_in(out, [e for e in study.experiments() if outcome(e, out).failure is None])
    for run, result in run_each(todo, root, quiet=quiet, jobs=jobs):
        if not isinstance(result, Exception):
            if study.table.after:
                study.table.after(run, root)
        elif isinstance(result, Diverged | Collapsed):
            if quiet or jobs == 1:  # else it was said in the line that a run among others leaves
                console().print(f"{run.folder.name}: {result}", soft_wrap=True)
        else:
            failures.append((run, result))
    return failures


def _write(
    comparison: Comparison,
    folders: Sequence[Path],
    html: Path | None,
    png: Path | None,
    markdown: Path | None,
) -> None:
    from fedmix import report
    from fedmix.paper import picture, show
    from fedmix.report.files import write

    if markdown:
        write(markdown, show.markdown(comparison).encode())
    if png:
        picture.draw(comparison, png)
    if html:
        report.write_html(report.load_runs(folders), html, picture.lead(comparison))
    tell_written(markdown, png, html)


def list_tables(studies: Sequence[Study], device: str, *, as_json: bool) -> None:
    """Each table with its number of runs and how long they would take on this machine; several also
    together.
    """
    from fedmix.paper.estimate import HOW, duration, measure, seconds

    if any(study.scale == "small" for study in studies):
        raise BadInput(
            "--list estimates runs of the paper's size, not --scale small, which takes minutes; "
            "leave one of them out"
        )

    @cache
    def step(name: str, fedmix: bool) -> float:
        if not as_json:
            console().print(f"measuring a local step of {name}, {'FedMix' if fedmix else 'FedAvg'}")
        return measure(name, fedmix, device)

    lines = [(s.table.name, s.table.title, s.experiments()) for s in studies]
    if len(lines) > 1:
        every = {e.id: e for *_, experiments in lines for e in experiments}
        lines.append(("all", "Every table; shared runs are run once", list(every.values())))
    how = HOW.format(device=device)
    if as_json:
        listed = {
            name: {"title": title, "runs": len(e), "seconds": round(seconds(e, step))}
            for name, title, e in lines
        }
        print(json.dumps({"how": how, "tables": listed}, indent=1, ensure_ascii=False))
        return
    from fedmix.report.tables import Column, Table

    with_seeds = (
        "With one seed" if len(studies[0].seeds) == 1 else f"With {len(studies[0].seeds)} seeds"
    )
    shown = Table(
        [
            Column(name, right=False, wrap=name == "what")
            for name in ("table", "what", "runs", "time")
        ],
        [[name, title, str(len(e)), duration(seconds(e, step))] for name, title, e in lines],
        caption=f"{with_seeds}. {how}",
    )
    console(sys.stdout).print(shown.rich())
