"""`fedmix run`."""

from pathlib import Path

import typer

from fedmix.cli.options import (
    Algorithm,
    Board,
    Data,
    Device,
    Engine,
    Jobs,
    Json,
    Out,
    Processes,
    Quiet,
    Rounds,
    Seed,
    Seeds,
    Set,
    What,
)

app = typer.Typer()


@app.command(
    epilog="Example:  fedmix run cifar10 --algorithm naivemix --set objective.lam=0.05,0.1 "
    "--seeds 3 --device cuda"
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
    from fedmix.cli.output import run_all
    from fedmix.experiment.sweep import experiments
    from fedmix.runs.execute import runs_in

    chosen = experiments(
        what, [algorithm], rounds, seed, seeds, settings or [], engine, device, processes
    )
    runs = runs_in(out, chosen)
    run_all(runs, data, quiet=quiet, as_json=as_json, tensorboard=tensorboard, jobs=jobs)
