"""`fedmix compare`."""

from pathlib import Path

import typer

from fedmix.cli.options import (
    Algorithms,
    Board,
    Curves,
    Data,
    Device,
    Engine,
    Jobs,
    Json,
    Out,
    Processes,
    Quiet,
    Report,
    Results,
    Rounds,
    Seed,
    Seeds,
    Set,
    What,
    listed,
)

app = typer.Typer()


@app.command(
    epilog="Example:  fedmix compare digits --algorithms fedavg,naivemix,fedmix --seeds 3 "
    "--png curves.png"
)
def compare(
    what: What = "digits",
    algorithms: Algorithms = "fedavg,naivemix,fedmix",
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
    html: Report = None,
    jobs: Jobs = 1,
    tensorboard: Board = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train several algorithms on the same clients, batches and seeds, and show one table."""
    from fedmix.cli.output import check_outputs, run_all, write_reports
    from fedmix.experiment.sweep import experiments
    from fedmix.runs.execute import runs_in

    check_outputs(csv, html, png=png, svg=svg)
    names = listed(algorithms)
    chosen = experiments(
        what, names, rounds, seed, seeds, settings or [], engine, device, processes
    )
    folders = run_all(
        runs_in(out, chosen),
        data,
        quiet=quiet,
        as_json=as_json,
        tensorboard=tensorboard,
        jobs=jobs,
    )
    write_reports(folders, pictures=(png, svg), csv=csv, html=html)
