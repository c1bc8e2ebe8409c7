"""`fedmix run`."""

import shlex
from pathlib import Path
from typing import Annotated

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
    device: options.Devices = None,
    workers: options.Workers = None,
    max_restarts: options.Restarts = 0,
    data: options.Data = None,
    out: options.Out = Path("runs"),
    jobs: options.Jobs = 1,
    print_commands: Annotated[
        bool,
        typer.Option(
            "--print-commands", help="Only print a command for each run, for a scheduler to start."
        ),
    ] = False,
    track: options.Track = "",
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Train. One run, or a sweep over seeds and settings; runs that are done are not run again."""
    from fedmix.cli.output import run_all
    from fedmix.experiment.sweep import experiments, settings_of_one
    from fedmix.runs.execute import runs_in

    kind, gpus = options.devices(device)
    given = settings or []
    chosen = experiments(what, [algorithm], rounds, seed, seeds, given, engine, kind, workers)
    runs = runs_in(out, chosen)
    if print_commands:
        same = {
            "--algorithm": algorithm, "--rounds": rounds, "--engine": engine, "--device": kind,
            "--workers": workers, "--max-restarts": max_restarts or None, "--data": data,
            "--track": track or None,
        }  # fmt: skip
        for one in chosen:
            words = ["fedmix", "run", what, "--seed", one.seed, "--out", out]
            words += [w for name, v in same.items() if v is not None for w in (name, v)]
            words += [w for s in settings_of_one(one, given) for w in ("--set", s)]
            print(shlex.join(map(str, words)))
        return
    run_all(
        runs,
        data,
        quiet=quiet,
        as_json=as_json,
        track=track,
        jobs=jobs,
        restarts=max_restarts,
        gpus=gpus,
    )
