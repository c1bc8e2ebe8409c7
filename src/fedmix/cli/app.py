"""The commands and their options. What they do is in `commands.py`, imported when one runs."""

import errno
import os
import sys
import warnings
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from fedmix import __version__
from fedmix.cli.bench import bench_app
from fedmix.cli.federation import federation_app
from fedmix.core.errors import FedmixError, format_warning

app = typer.Typer(
    name="fedmix",
    help="Mean-augmented federated learning: train, compare and report FedMix and its relatives.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog="Example:  fedmix compare digits --seeds 3",
)
data_app = typer.Typer(
    help="The data sets: what there is, fetch it, look at it.", no_args_is_help=True
)
app.add_typer(data_app, name="data")
app.add_typer(bench_app, name="bench")
app.add_typer(federation_app, name="federation")

What = Annotated[
    str,
    typer.Argument(
        metavar="PRESET|FILE.toml",
        help="A preset (digits, cifar10, cifar100, femnist, shakespeare) or a file.",
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A setting by dotted path; several values, split by commas, are a sweep.",
    ),
]
Algorithm = Annotated[
    str | None,
    typer.Option(
        help="fedavg, fedprox, localmix, globalmix, naivemix, fedmix, fedmix-logits, randommix or localmeans; "
        "'+prox' after it adds FedProx's term, 'hidden-' before it mixes hidden states."
    ),
]
Rounds = Annotated[int | None, typer.Option(help="How many rounds.")]
Out = Annotated[Path, typer.Option(help="The folder in which each run gets a folder.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...")]
Engine = Annotated[str | None, typer.Option(help="vectorised or sequential.")]
Processes = Annotated[
    int | None, typer.Option(help="On a CPU: divide a round's clients among so many processes.")
]
Seeds = Annotated[int, typer.Option(help="How many seeds, from --seed on.")]
Seed = Annotated[int | None, typer.Option(help="The (first) seed; 0, or the file's.")]
Data = Annotated[
    Path | None,
    typer.Option("--data", help="A folder with the hub's parquet files, instead of a download."),
]
Delta = Annotated[float, typer.Option(help="δ, well below 1 over the number of samples.")]
Curves = Annotated[Path | None, typer.Option(help="Write the curves there.")]
Results = Annotated[Path | None, typer.Option(help="Write the table there.")]
Jobs = Annotated[
    int,
    typer.Option(metavar="N", help="Up to N runs at once, each a process; they share the device."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")]
Board = Annotated[
    bool, typer.Option("--tensorboard", help="Also log to TensorBoard, into each run's folder.")
]
Json = Annotated[
    bool, typer.Option("--json", help="The result as JSON on standard output, for scripts.")
]


def _tell_version(asked: bool) -> None:
    if asked:
        typer.echo(f"fedmix {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_tell_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """What holds for all commands; typer has it in a function, and takes the help from above."""


@app.command(
    epilog="Example:  fedmix run cifar10 --algorithm naivemix --set objective.lam=0.05,0.1 --seeds 3 --device cuda"
)
def run(
    what: What = "digits",
    algorithm: Algorithm = None,
    rounds: Rounds = None,
    seed: Seed = None,
    seeds: Seeds = 1,
    settings: Set = None,
    engine: Engine = None,
    device: Device = None,
    processes: Processes = None,
    data: Data = None,
    out: Out = Path("runs"),
    jobs: Jobs = 1,
    tensorboard: Board = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train. One run, or a sweep over seeds and settings; runs that are done are not run again."""
    from fedmix.cli import commands
    from fedmix.experiment import sweep
    from fedmix.runs.execute import runs_in

    experiments = sweep.experiments(
        what, [algorithm], rounds, seed, seeds, settings or [], engine, device, processes
    )
    runs = runs_in(out, experiments)
    commands.run_all(runs, data, quiet=quiet, as_json=as_json, tensorboard=tensorboard, jobs=jobs)


@app.command(
    epilog="Example:  fedmix compare digits --algorithms fedavg,naivemix,fedmix --seeds 3 --png curves.png"
)
def compare(
    what: What = "digits",
    algorithms: Annotated[
        str, typer.Option(help="Names, split by commas.")
    ] = "fedavg,naivemix,fedmix",
    rounds: Rounds = None,
    seed: Seed = None,
    seeds: Seeds = 3,
    settings: Set = None,
    engine: Engine = None,
    device: Device = None,
    processes: Processes = None,
    data: Data = None,
    out: Out = Path("runs"),
    png: Curves = None,
    svg: Curves = None,
    csv: Results = None,
    html: Annotated[Path | None, typer.Option(help="Write the whole report there.")] = None,
    jobs: Jobs = 1,
    tensorboard: Board = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train several algorithms on the same clients, batches and seeds, and show one table."""
    from fedmix.cli import commands
    from fedmix.cli.words import listed
    from fedmix.experiment import sweep
    from fedmix.runs.execute import runs_in

    commands.check_outputs(csv, html, png=png, svg=svg)
    experiments = sweep.experiments(
        what, listed(algorithms), rounds, seed, seeds, settings or [], engine, device, processes
    )
    runs = runs_in(out, experiments)
    folders = commands.run_all(
        runs, data, quiet=quiet, as_json=as_json, tensorboard=tensorboard, jobs=jobs
    )
    commands.write_reports(folders, pictures=(png, svg), csv=csv, html=html)


@app.command(
    epilog="Example:  fedmix reproduce main --columns cifar10 --rows fedavg,naivemix,fedmix --seeds 3 --device cuda"
)
def reproduce(
    table: Annotated[
        str | None, typer.Argument(help="A table or figure of the paper; --list shows them.")
    ] = None,
    rows: Annotated[
        str | None, typer.Option(help="Only these rows, such as fedavg,fedmix.")
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(help="Only these columns, by name or by data set, such as cifar10."),
    ] = None,
    seed: Annotated[int, typer.Option(help="The (first) seed.")] = 0,
    seeds: Seeds = 1,
    rounds: Rounds = None,
    scale: Annotated[
        str, typer.Option(help="paper, or small: minutes on a laptop, and not comparable.")
    ] = "paper",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A setting of all its experiments, by dotted path."
        ),
    ] = None,
    score: Annotated[str, typer.Option(help="Which accuracy: last, best or last-ten.")] = "last",
    engine: Engine = None,
    device: Device = None,
    processes: Processes = None,
    data: Data = None,
    out: Out = Path("runs"),
    jobs: Jobs = 1,
    run: Annotated[
        bool,
        typer.Option("--run/--no-run", help="Run what is missing, or show only what is there."),
    ] = True,
    html: Annotated[Path | None, typer.Option(help="Write the whole report there.")] = None,
    png: Annotated[Path | None, typer.Option(help="Write the chart there (.png or .svg).")] = None,
    markdown: Results = None,
    listing: Annotated[
        bool,
        typer.Option(
            "--list",
            help="The tables, or the one given, their runs and about how long they take here.",
        ),
    ] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run a table of the paper, and show ours beside its numbers.

    Finished runs are used again, stopped ones go on.
    """
    from fedmix.cli import commands
    from fedmix.cli import reproduce as reproducing

    fixed = {
        "rounds": rounds,
        "engine.name": engine,
        "engine.device": device,
        "engine.processes": processes,
    }
    studies = [
        reproducing.study(name, rows, columns, seed, seeds, scale, settings or [], fixed)
        for name in reproducing.asked_for(table, every=listing)
    ]
    if listing:
        reproducing.list_tables(studies, device or "cpu", as_json=as_json)
        return
    commands.check_outputs(html, markdown, pictures=(png,))
    [study] = studies
    reproducing.reproduce(
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


@app.command(epilog="Example:  fedmix audit digits --sigma 0,0.3 --seeds 10 --html audit.html")
def audit(
    what: What = "digits",
    sizes: Annotated[
        str, typer.Option("--m", help="Numbers of samples in a mean, split by commas.")
    ] = "1,2,5,10,50,all",
    sigma: Annotated[
        str | None,
        typer.Option(help="Deviations of the noise, split by commas; else the file's, or 0."),
    ] = None,
    epsilon: Annotated[
        str | None, typer.Option(help="Also the noise that each of these needs; with --clip.")
    ] = None,
    clip: Annotated[
        float | None, typer.Option(help="The bound on a sample's norm, input and label together.")
    ] = None,
    average: Annotated[
        int, typer.Option(help="How many means the server averages, where it does.")
    ] = 4,
    wait: Annotated[
        float, typer.Option(help="The share of clients that wait for each other, where they do.")
    ] = 0.25,
    delta: Delta = 1e-5,
    seed: Seed = None,
    seeds: Seeds = 1,
    settings: Set = None,
    data: Data = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with pictures there.")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Attack what clients exchange: who was in it, what it shows, whose it is, and what a refresh
    gives away.
    """
    from fedmix.cli import auditing

    auditing.attack(
        what, sizes, sigma, epsilon, clip, average, wait, delta, seed, seeds, settings or [], data,
        html=html, quiet=quiet, as_json=as_json,
    )  # fmt: skip


@app.command(epilog="Example:  fedmix resume runs/digits-fedmix-s0-1a2b3c4d5e")
def resume(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs that were stopped.")],
    rounds: Rounds = None,
    processes: Processes = None,
    data: Data = None,
    jobs: Jobs = 1,
    tensorboard: Board = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Go on with runs that were stopped or killed, or add rounds to finished ones."""
    from fedmix.cli import commands

    runs = commands.reopened(folders, rounds, processes)
    commands.run_all(runs, data, quiet=quiet, as_json=as_json, tensorboard=tensorboard, jobs=jobs)


@app.command(epilog="Example:  fedmix report runs -o report.html")
def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold them.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path(
        "report.html"
    ),
    png: Curves = None,
    svg: Curves = None,
    csv: Results = None,
) -> None:
    """Write one HTML page, which works offline, with curves, tables, clients, means and settings of
    these runs.
    """
    from fedmix.cli import commands

    commands.check_outputs(output, csv, png=png, svg=svg)
    commands.write_reports(folders, pictures=(png, svg), csv=csv, html=output)


@app.command(epilog="Example:  fedmix privacy --m all --clip 4 --epsilon 1 --png means.png")
def privacy(
    what: What = "digits",
    m: Annotated[
        str | None,
        typer.Option(
            "--m",
            help="M_k: samples in a mean, a fraction of a client's, or all; all, or the file's.",
        ),
    ] = None,
    clip: Annotated[
        float | None,
        typer.Option(help="The bound on the L2 norm of a sample, input and label together."),
    ] = None,
    sigma: Annotated[
        float | None, typer.Option(help="The noise's deviation; 0, or the file's.")
    ] = None,
    label_clip: Annotated[
        float | None,
        typer.Option(help="A bound for labels alone; --clip is then for inputs alone."),
    ] = None,
    label_sigma: Annotated[
        float | None, typer.Option(help="The deviation of the labels' own noise.")
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(help="Print the least noise for this ε, instead of the ε of a noise."),
    ] = None,
    delta: Delta = 1e-5,
    releases: Annotated[int, typer.Option(help="How often a client's means are sent.")] = 1,
    n: Annotated[
        int | None,
        typer.Option(
            "--n", help="Samples of the smallest client, of any sign, instead of a preset's data."
        ),
    ] = None,
    data: Data = None,
    png: Annotated[
        Path | None,
        typer.Option(help="Write there what the noised means look like (.png or .svg)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """How much privacy noise on the means gives, as (ε, δ), or how much noise an ε needs."""
    from fedmix.cli import commands
    from fedmix.cli import privacy as asked
    from fedmix.cli.words import group_size
    from fedmix.core.errors import BadInput

    commands.check_outputs(pictures=(png,))
    if epsilon is not None and (sigma or label_sigma):
        raise BadInput("--epsilon asks for the noise; leave --sigma and --label-sigma out")
    if label_clip is not None and epsilon is not None:
        label_sigma = 1.0  # to be replaced by what is needed
    given = {"m": m and group_size(m), "clip": clip, "noise": sigma}
    given |= {"label_clip": label_clip, "label_noise": label_sigma}
    how = asked.exchange(what, {name: value for name, value in given.items() if value is not None})
    asked.privacy(
        what,
        how,
        epsilon=epsilon,
        delta=delta,
        releases=releases,
        samples=n,
        root=data,
        png=png,
        as_json=as_json,
    )


@data_app.command("list", epilog="Example:  fedmix data list")
def data_list(as_json: Json = False) -> None:
    """The data sets and where they come from."""
    from fedmix.cli import commands

    commands.list_data(as_json)


@data_app.command("fetch", epilog="Example:  fedmix data fetch cifar10 femnist")
def data_fetch(
    names: Annotated[list[str], typer.Argument(help="Data sets.")], data: Data = None
) -> None:
    """Download and decode data sets now, so that runs start at once."""
    from fedmix.cli import commands

    commands.fetch_data(names, data)


@data_app.command("show", epilog="Example:  fedmix data show digits --set data.partition=iid")
def data_show(
    what: What = "digits",
    seed: Seed = None,
    settings: Set = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """How a preset's data is dealt out: sizes and classes of its clients."""
    from fedmix.cli import commands

    commands.show_data(what, seed, settings or [], data, as_json)


def main() -> None:
    """Run the command line; mistakes end in one sentence and an exit code."""
    if sys.argv[1:2] != ["bench"]:  # which asks for a machine of its own
        os.environ.setdefault(
            "OMP_WAIT_POLICY", "PASSIVE"
        )  # spinning threads make a busy machine ten times slower
    warnings.formatwarning = format_warning
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(
                errors="replace"
            )  # where a terminal or a pipe has no ε, a ? is better than no result
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # here, where what goes wrong is told; not when Python ends
    except FedmixError as error:
        print(f"fedmix: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("fedmix: stopped", file=sys.stderr)
        sys.exit(130)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EPIPE):
            raise
        if error.errno == errno.ENOSPC:  # else who reads has seen enough
            print(
                "fedmix: no space is left where the result goes; free some and run the same again",
                file=sys.stderr,
            )
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # lest Python fail on the rest of it at its end
        sys.exit(1)


if __name__ == "__main__":
    main()
