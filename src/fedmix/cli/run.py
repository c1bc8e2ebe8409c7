"""`fedmix run`."""

from pathlib import Path

import typer

from fedmix.cli import options

app = typer.Typer()


@app.command(
    cls=options.Command,
    epilog="Example:  fedmix run cifar10 --algorithm naivemix --set objective.lam=0.05,0.1 "
    "--seeds 3 --device cuda",
)
def run(
    what: options.What = "digits",
    algorithm: options.Algorithm = None,
    rounds: options.Rounds = None,
    seed: options.Seed = None,
    seeds: options.Seeds = 1,
    settings: options.Set = None,
    engine: options.Engine = None,
    device: options.Device = None,
    workers: options.Workers = None,
    max_restarts: options.Restarts = 0,
    data: options.Data = None,
    out: options.Out = Path("runs"),
    jobs: options.Jobs = 1,
    tensorboard: options.Board = False,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Train. One run, or a sweep over seeds and settings; runs that are done are not run again."""
    from fedmix.cli.output import run_all
    from fedmix.experiment.sweep import experiments
    from fedmix.runs.execute import runs_in

    chosen = experiments(
        what, [algorithm], rounds, seed, seeds, settings or [], engine, device, workers
    )
    runs = runs_in(out, chosen)
    run_all(
        runs,
        data,
        quiet=quiet,
        as_json=as_json,
        tensorboard=tensorboard,
        jobs=jobs,
        restarts=max_restarts,
    )
