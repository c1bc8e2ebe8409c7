"""`fedmix bench steps`, `scale` and `show`."""

import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmix.cli import options
from fedmix.core.errors import BadInput, Interrupted
from fedmix.core.nearest import choice

if TYPE_CHECKING:
    from fedmix.bench.scale import Growth
    from fedmix.report.tables import Table

app = typer.Typer(
    help="Measure fedmix on your machine, with random data in memory.",
    no_args_is_help=True,
    epilog="Example:  fedmix bench steps",
)

Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")]
OutFile = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="Write all numbers there, as JSON.")
]


@app.command(
    epilog="Example:  fedmix bench steps --workloads lenet,vgg --device cuda --out steps.json"
)
def steps(
    workloads: Annotated[
        str, typer.Option(help="digits, lenet, vgg, charlstm, split by commas, or all.")
    ] = "digits,lenet",
    algorithms: options.Algorithms = "fedavg,fedmix",
    variants: Annotated[
        str, typer.Option(help="Which to compare, split by commas.")
    ] = "plain,default,functional,sequential,vectorised,compiled,processes",
    device: Device = "cpu",
    repeats: Annotated[
        int, typer.Option(help="Timed rounds of each variant; they take turns.")
    ] = 7,
    clients: Annotated[
        int | None, typer.Option(help="Clients in a round; the preset's if not given.")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="Samples in a batch; the preset's if not given.")
    ] = None,
    local_steps: Annotated[
        int | None, typer.Option("--steps", help="Mean local steps of a client in a round.")
    ] = None,
    ragged: Annotated[
        bool,
        typer.Option("--ragged", help="Clients with 20 % to 180 % of the mean number of samples."),
    ] = False,
    precision: Annotated[
        str, typer.Option(help="How a GPU multiplies: tf32, float32 or bf16, for all variants.")
    ] = "tf32",
    out: OutFile = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Time one local step of all clients, in a plain PyTorch loop and in every way of fedmix."""
    from fedmix.bench import results
    from fedmix.bench.cases import VARIANTS, WORKLOADS, Size, settings
    from fedmix.bench.machine import about
    from fedmix.bench.measure import Bench, most_processes
    from fedmix.cli.launch import launch
    from fedmix.cli.output import check_outputs
    from fedmix.core.devices import device_named
    from fedmix.core.ranks import are_launched
    from fedmix.kernels.precision import called
    from fedmix.report.files import write
    from fedmix.runs.progress import counting, tell_written

    size = Size(clients, batch, local_steps, ragged, called(precision))
    check_outputs(out)
    names = list(WORKLOADS) if workloads == "all" else _among("--workloads", workloads, WORKLOADS)
    kinds, chosen = _among("--variants", variants, VARIANTS), _known_algorithms(algorithms)
    groups = [
        (name, algorithm, _possible(kinds, algorithm, device))
        for name in names
        for algorithm in chosen
    ]
    command = _command(
        "steps",
        workloads=",".join(names),
        algorithms=",".join(chosen),
        variants=",".join(kinds),
        device=device,
        repeats=repeats,
        clients=size.clients,
        batch=size.batch,
        steps=size.steps,
        ragged=size.ragged,
        precision=size.precision,
    )
    on = about(device_named(device), command)
    Bench(size, device, repeats)  # what is wrong is told before other processes are started
    for name, algorithm, _ in groups:
        settings(WORKLOADS[name], algorithm, size, device)
    if not are_launched() and (workers := most_processes(groups, size, device)) > 1:
        sys.exit(launch(workers, 0, sys.argv))
    total = sum(len(possible) * (1 + repeats) for *_, possible in groups)
    with counting(total, quiet) as listen:
        bench = Bench(size, device, repeats, listen)
        try:
            for name, algorithm, possible in groups:
                bench.group(name, WORKLOADS[name], algorithm, possible)
        except KeyboardInterrupt:
            measured = results.table(bench.records) if bench.records else None
            raise _stopped(measured, bench.notes) from None
    content = results.content("steps", on, bench.records, bench.notes)
    if as_json:
        print(content, end="")
    else:
        _tell(results.table(bench.records), bench.notes)
    if out:
        write(out, content.encode())
    tell_written(out)


@app.command(epilog="Example:  fedmix bench scale --axes clients,population --plot scale.svg")
def scale(
    axes: Annotated[
        str, typer.Option(help="What grows, split by commas.")
    ] = "clients,population,steps,width",
    algorithms: options.Algorithms = "fedavg,fedmix",
    device: Device = "cpu",
    repeats: Annotated[int, typer.Option(help="Timed rounds at each point.")] = 3,
    limit: Annotated[
        float, typer.Option(help="Seconds; a point that takes longer is the last of its axis.")
    ] = 10.0,
    out: OutFile = None,
    as_json: options.Json = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the curves there, as .svg or .png.")
    ] = None,
    quiet: options.Quiet = False,
) -> None:
    """Time a round, and its memory, as one thing at a time grows: clients, steps, the model."""
    from fedmix.bench import results
    from fedmix.bench import scale as scaling
    from fedmix.bench.machine import about
    from fedmix.bench.plot import draw_growth
    from fedmix.cli.output import check_outputs
    from fedmix.core.devices import device_named
    from fedmix.report.files import write
    from fedmix.runs.progress import counting, tell_written

    check_outputs(out, pictures=(plot,))
    names, chosen = _among("--axes", axes, scaling.AXES), _known_algorithms(algorithms)
    command = _command(
        "scale",
        axes=",".join(names),
        algorithms=",".join(chosen),
        device=device,
        repeats=repeats,
        limit=f"{limit:g}",
    )
    on = about(device_named(device), command)
    grown: list[Growth] = []
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
    content = results.content("scale", on, grown, notes)
    if as_json:
        print(content, end="")
    else:
        _tell(scaling.table(grown), notes)
    if out:
        write(out, content.encode())
    if plot:
        draw_growth(grown, plot)
    tell_written(out, plot)


@app.command(epilog="Example:  fedmix bench show steps.json --chart speed.svg")
def show(
    files: Annotated[
        list[Path], typer.Argument(help="Files that 'fedmix bench steps --out' wrote.")
    ],
    chart: Annotated[
        Path | None, typer.Option(help="Draw how much faster than the plain loop, as .svg or .png.")
    ] = None,
    variants: Annotated[
        str | None, typer.Option(help="Show only these, split by commas, as in plain,default.")
    ] = None,
    caption: Annotated[
        str, typer.Option(help="A line below the chart that says how it was measured.")
    ] = "",
    markdown: Annotated[bool, typer.Option("--markdown", help="The table for a page.")] = False,
) -> None:
    """Show measured steps again, of one or several files, as a table or a chart."""
    from fedmix.bench import results
    from fedmix.bench.plot import draw_speedups
    from fedmix.cli.output import check_outputs
    from fedmix.runs.progress import tell_written

    check_outputs(pictures=(chart,))
    records = [record for path in files for record in results.read_steps(path)]
    if not records:
        raise BadInput(
            "these files hold no records; give files that 'fedmix bench steps --out' wrote"
        )
    if variants:
        there = list(dict.fromkeys(record.variant for record in records))
        shown = _among("--variants", variants, there)
        records = [record for record in records if record.variant in shown]
    if chart:
        draw_speedups(records, chart, caption)
        tell_written(chart)
    if markdown:
        print(results.table(records).markdown())
    else:
        _tell(results.table(records), [])


def _among(option: str, text: str, known: Iterable[str]) -> list[str]:
    """Split names at commas, and refuse those that are not known."""
    names = options.listed(text)
    wrong = [name for name in names if name not in known]
    if wrong or not names:
        word = wrong[0] if wrong else text
        raise BadInput(f"{option} {word!r} is unknown; {choice(word, known)}")
    return names


def _known_algorithms(text: str) -> list[str]:
    """Split names of algorithms at commas, and refuse those that the presets do not know."""
    from fedmix.experiment.presets import experiment

    names = options.listed(text)
    if not names:
        raise BadInput("--algorithms is empty; give at least one, such as fedmix")
    for name in names:
        experiment("digits", name)
    return names


def _possible(variants: Sequence[str], algorithm: str, device: str) -> list[str]:
    """Return the variants that exist for an algorithm and a device: loops have only some
    algorithms, and several processes need a CPU.
    """
    from fedmix.bench.cases import LOOPS

    possible = [
        v
        for v in variants
        if (v not in LOOPS or algorithm in LOOPS[v].known) and (v != "processes" or device == "cpu")
    ]
    if not possible:
        loops = [
            f"the {v} loop knows {', '.join(LOOPS[v].known)}, and not {algorithm}"
            for v in variants
            if v in LOOPS
        ]
        raise BadInput(f"{'; '.join(loops) or 'processes need a CPU'}; choose other variants")
    return possible


def _command(name: str, **given: object) -> str:
    """Return the command that repeats a measurement, without the files that it wrote."""
    words = ["fedmix", "bench", name]
    for option, value in given.items():
        if value is not None and value is not False:
            words += [f"--{option}"] if value is True else [f"--{option}", str(value)]
    return shlex.join(words)


def _tell(table: "Table | None", notes: Sequence[str]) -> None:
    """Print a table and the notes on it."""
    from fedmix.runs.progress import console

    out = console(sys.stdout)
    if table is not None:
        out.print(table.rich())
    for note in notes:
        out.print(note, soft_wrap=True)


def _stopped(table: "Table | None", notes: Sequence[str]) -> Interrupted:
    """Print what was measured before Ctrl-C, and return the error to raise."""
    _tell(table, notes)
    what = "nothing was measured yet" if table is None else "this is what was measured so far"
    return Interrupted(f"stopped; {what}, and no file was written")
