"""`fedmix compare`."""

from pathlib import Path

import typer

from fedmix.cli import options

app = typer.Typer()


@app.command(
    cls=options.Command,
    epilog="Example:  fedmix compare digits --algorithms fedavg,naivemix,fedmix-logits --seeds 3 "
    "--png curves.png",
)
def compare(
    what: options.What = "digits",
    algorithms: options.Algorithms = "fedavg,naivemix,fedmix-logits",
    rounds: options.Rounds = None,
    seed: options.Seed = None,
    seeds: options.Seeds = 3,
    settings: options.Set = None,
    engine: options.Engine = None,
    device: options.Devices = None,
    workers: options.Workers = None,
    data: options.Data = None,
    out: options.Out = Path("runs"),
    png: options.Curves = None,
    svg: options.Curves = None,
    csv: options.Results = None,
    html: options.Report = None,
    jobs: options.Jobs = 1,
    track: options.Track = "",
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Train several algorithms on the same clients, batches and seeds, and show one table."""
    from fedmix.cli.output import check_outputs, run_all, write_reports
    from fedmix.experiment.sweep import experiments
    from fedmix.runs.execute import runs_in

    check_outputs(csv, html, png=png, svg=svg)
    names = options.listed(algorithms)
    kind, gpus = options.devices(device)
    chosen = experiments(what, names, rounds, seed, seeds, settings or [], engine, kind, workers)
    folders = run_all(
        runs_in(out, chosen),
        data,
        quiet=quiet,
        as_json=as_json,
        track=track,
        jobs=jobs,
        gpus=gpus,
    )
    write_reports(folders, pictures=(png, svg), csv=csv, html=html)
