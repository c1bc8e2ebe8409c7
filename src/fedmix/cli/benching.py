"""What `fedmix bench` does: measure with progress shown, then a table, a file, a picture."""

import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedmix.bench import plot as pictures
from fedmix.bench import results
from fedmix.bench import scale as scaling
from fedmix.bench.cases import VARIANTS, WORKLOADS, Size
from fedmix.bench.machine import about
from fedmix.bench.measure import Bench
from fedmix.bench.plain import KNOWN
from fedmix.cli.commands import check_outputs
from fedmix.cli.words import listed
from fedmix.core.errors import BadInput, Interrupted
from fedmix.experiment.presets import experiment
from fedmix.report.tables import Table
from fedmix.runs.progress import console, counting, tell_written
from fedmix.training.federation import device_named


def steps(
    workloads: str,
    algorithms: str,
    variants: str,
    size: Size,
    device: str,
    repeats: int,
    *,
    json_file: Path | None,
    quiet: bool,
) -> None:
    """`fedmix bench steps`."""
    check_outputs(json_file)
    names = list(WORKLOADS) if workloads == "all" else among("--workloads", workloads, WORKLOADS)
    kinds, chosen = among("--variants", variants, VARIANTS), known_algorithms(algorithms)
    groups = [
        (name, algorithm, _possible(kinds, algorithm, device))
        for name in names
        for algorithm in chosen
    ]
    command = _command(
        "steps", workloads=",".join(names), algorithms=",".join(chosen), variants=",".join(kinds), device=device, repeats=repeats,
        clients=size.clients, batch=size.batch, steps=size.steps, ragged=size.ragged, precision=size.precision,
    )  # fmt: skip
    on = about(device_named(device), command)
    total = sum(len(possible) * (1 + repeats) for *_, possible in groups)
    with counting(total, quiet) as listen:
        bench = Bench(size, device, repeats, listen)
        try:
            for name, algorithm, possible in groups:
                bench.group(name, WORKLOADS[name], algorithm, possible)
        except KeyboardInterrupt:
            raise _stopped(
                results.table(bench.records) if bench.records else None, bench.notes
            ) from None
    _tell(results.table(bench.records), bench.notes)
    if json_file:
        results.written("steps", on, bench.records, bench.notes, json_file)
    tell_written(json_file)


def scale(
    axes: str,
    algorithms: str,
    device: str,
    repeats: int,
    limit: float,
    *,
    json_file: Path | None,
    plot: Path | None,
    quiet: bool,
) -> None:
    """`fedmix bench scale`."""
    check_outputs(json_file, pictures=(plot,))
    names, chosen = among("--axes", axes, scaling.AXES), known_algorithms(algorithms)
    command = _command(
        "scale",
        axes=",".join(names),
        algorithms=",".join(chosen),
        device=device,
        repeats=repeats,
        limit=f"{limit:g}",
    )
    on = about(device_named(device), command)
    grown: list[scaling.Growth] = []
    notes: list[str] = []
    with counting(len(chosen) * sum(len(scaling.AXES[name]) for name in names), quiet) as listen:
        try:
            for found in scaling.sweep(names, chosen, device, repeats, limit, listen):
                if isinstance(found, str):
                    notes.append(found)
                else:
                    grown.append(found)
        except KeyboardInterrupt:
            raise _stopped(scaling.table(grown) if grown else None, notes) from None
    _tell(scaling.table(grown), notes)
    if json_file:
        results.written("scale", on, grown, notes, json_file)
    if plot:
        pictures.draw_growth(grown, plot)
    tell_written(json_file, plot)


def show(files: Sequence[Path], chart: Path | None, markdown: bool) -> None:
    """`fedmix bench show`."""
    check_outputs(pictures=(chart,))
    records = [record for path in files for record in results.read_steps(path)]
    if not records:
        raise BadInput(
            "these files hold no records; give files that 'fedmix bench steps --json' wrote"
        )
    if chart:
        pictures.draw_speedups(records, chart)
        tell_written(chart)
    if markdown:
        print(results.table(records).markdown())
    else:
        console(sys.stdout).print(results.table(records).rich())


def among(option: str, text: str, known: Iterable[str]) -> list[str]:
    """Names split by commas, each of them known."""
    names = listed(text)
    wrong = [name for name in names if name not in known]
    if wrong or not names:
        raise BadInput(
            f"{option} {wrong[0] if wrong else text!r} is unknown; choose among {', '.join(known)}"
        )
    return names


def known_algorithms(text: str) -> list[str]:
    """Names of algorithms split by commas, as the presets know them."""
    names = listed(text)
    if not names:
        raise BadInput("--algorithms is empty; give at least one, such as fedmix")
    for name in names:
        experiment("digits", name)
    return names


def _possible(variants: Sequence[str], algorithm: str, device: str) -> list[str]:
    """Without the plain loop where nobody wrote it, and without processes on a GPU."""
    possible = [
        v
        for v in variants
        if (v != "plain" or algorithm in KNOWN) and (v != "processes" or device == "cpu")
    ]
    if not possible:
        why = (
            f"the plain loop knows {', '.join(KNOWN)}, and not {algorithm}"
            if "plain" in variants
            else "processes need a CPU"
        )
        raise BadInput(f"{why}; choose other variants")
    return possible


def _command(name: str, **options: object) -> str:
    """The command that measures the same again; where its results were written does not matter."""
    words = ["fedmix", "bench", name]
    for option, value in options.items():
        if value is not None and value is not False:
            words += [f"--{option}"] if value is True else [f"--{option}", str(value)]
    return shlex.join(words)


def _tell(table: Table | None, notes: Sequence[str]) -> None:
    out = console(sys.stdout)
    if table is not None:
        out.print(table.rich())
    for note in notes:
        out.print(note, soft_wrap=True)


def _stopped(table: Table | None, notes: Sequence[str]) -> Interrupted:
    """Show what there is, and say so."""
    _tell(table, notes)
    what = "nothing was measured yet" if table is None else "this is what was measured so far"
    return Interrupted(f"stopped; {what}, and no file was written")
