"""The options of `fedmix bench`.

What its commands do is in `benching.py`, imported when one runs.
"""

from pathlib import Path
from typing import Annotated

import typer

bench_app = typer.Typer(
    help="Measure fedmix on your machine, with random data in memory.",
    no_args_is_help=True,
    epilog="Example:  fedmix bench steps",
)

Algorithms = Annotated[str, typer.Option(help="Names, split by commas.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")]
JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write all numbers there.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")]


@bench_app.command(
    epilog="Example:  fedmix bench steps --workloads lenet,vgg --device cuda --json steps.json"
)
def steps(
    workloads: Annotated[
        str, typer.Option(help="digits, lenet, vgg, charlstm, split by commas, or all.")
    ] = "digits,lenet",
    algorithms: Algorithms = "fedavg,fedmix",
    variants: Annotated[
        str, typer.Option(help="Which to compare, split by commas.")
    ] = "plain,sequential,vectorised,compiled,processes",
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
    json_file: JsonFile = None,
    quiet: Quiet = False,
) -> None:
    """Time one local step of all clients: the plain PyTorch loop, both engines, compiled, and on
    several processes.
    """
    from fedmix.bench.cases import Size
    from fedmix.cli import benching
    from fedmix.kernels.precision import called

    size = Size(clients, batch, local_steps, ragged, called(precision))
    benching.steps(
        workloads, algorithms, variants, size, device, repeats, json_file=json_file, quiet=quiet
    )


@bench_app.command(epilog="Example:  fedmix bench scale --axes clients,population --plot scale.svg")
def scale(
    axes: Annotated[
        str, typer.Option(help="What grows, split by commas.")
    ] = "clients,population,steps,width",
    algorithms: Algorithms = "fedavg,fedmix",
    device: Device = "cpu",
    repeats: Annotated[int, typer.Option(help="Timed rounds at each point.")] = 3,
    limit: Annotated[
        float, typer.Option(help="Seconds; a point that takes longer is the last of its axis.")
    ] = 10.0,
    json_file: JsonFile = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the curves there, as .svg or .png.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Time a round, and its memory, as one thing at a time grows: clients per round, clients in
    all, steps, model size.
    """
    from fedmix.cli import benching

    benching.scale(
        axes, algorithms, device, repeats, limit, json_file=json_file, plot=plot, quiet=quiet
    )


@bench_app.command(epilog="Example:  fedmix bench show steps.json --chart speed.svg")
def show(
    files: Annotated[
        list[Path], typer.Argument(help="Files that 'fedmix bench steps --json' wrote.")
    ],
    chart: Annotated[
        Path | None, typer.Option(help="Draw how much faster than the plain loop, as .svg or .png.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="The table for a page.")] = False,
) -> None:
    """Show measured steps again, of one or several files, as a table or a chart."""
    from fedmix.cli import benching

    benching.show(files, chart, markdown)
