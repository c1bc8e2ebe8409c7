"""`fedmix data list`, `fetch` and `show`."""

import json
import sys
from inspect import signature
from typing import Annotated

import typer

from fedmix.cli import options
from fedmix.core.errors import BadInput
from fedmix.core.nearest import choice

CLIENTS = 20  # that `show` prints one by one

app = typer.Typer(help="The data sets: what there is, fetch it, look at it.", no_args_is_help=True)


@app.command("list", epilog="Example:  fedmix data list")
def list_(as_json: options.Json = False) -> None:
    """The data sets, where they come from, and how much of them is on this machine."""
    from fedmix.core.registry import DATA
    from fedmix.data.cache import location, sizes
    from fedmix.runs.progress import console

    known = {name: (DATA.entry(name).about, *sizes(name)) for name in DATA}
    if as_json:
        titles = ("about", "downloaded_bytes", "decoded_bytes")
        told = {name: dict(zip(titles, facts, strict=True)) for name, facts in known.items()}
        print(json.dumps(told, indent=1))
        return
    out = console(sys.stdout)
    for name, (about, downloaded, decoded) in known.items():
        kept = [
            f"{size / 2**20:.1f} MiB {what}"
            for size, what in ((downloaded, "downloaded"), (decoded, "decoded"))
            if size
        ]
        out.print(f"{name:12} {about}")
        if "root" in signature(DATA[name]).parameters:  # it comes from the hub
            out.print(f"{'':12} here: {', '.join(kept) or 'nothing yet'}")
    out.print(f"decoded data are in {location()}", soft_wrap=True)


@app.command(epilog="Example:  fedmix data fetch cifar10 femnist")
def fetch(
    names: Annotated[list[str], typer.Argument(help="Data sets.")], data: options.Data = None
) -> None:
    """Download and decode data sets now, so that runs start at once."""
    from fedmix.core.registry import DATA
    from fedmix.experiment.spec import load_data
    from fedmix.runs.progress import console

    unknown = [n for n in names if n not in DATA]
    if unknown:
        raise BadInput(f"data {unknown[0]!r} is unknown; {choice(unknown[0], DATA)}")
    for name in names:
        loaded = load_data(name, data)
        console(sys.stdout).print(
            f"{name}: {len(loaded.x)} training and {len(loaded.held_out.x)} test samples"
        )


@app.command(
    cls=options.Command, epilog="Example:  fedmix data show digits --set data.partition=iid"
)
def show(
    what: options.What = "digits",
    seed: options.Seed = None,
    settings: options.Set = None,
    data: options.Data = None,
    as_json: options.Json = False,
) -> None:
    """How a preset's data is dealt out: sizes and classes of its clients."""
    from fedmix.experiment.sweep import only_experiment
    from fedmix.runs.progress import console

    algorithm = None if what.endswith(".toml") else "fedavg"
    federated = only_experiment(what, algorithm, None, seed, settings or []).build_data(data)
    sizes, by_class = federated.clients.sizes, federated.class_counts()
    counts = [] if by_class is None else by_class.tolist()
    if as_json:
        print(json.dumps({"clients": len(sizes), "sizes": sizes.tolist(), "counts": counts}))
        return
    out = console(sys.stdout)
    spread = f"{sizes.min()} to {sizes.max()} samples (mean {sizes.mean():.1f})"
    out.print(
        f"{federated.name}: {len(sizes)} clients, {spread}, "
        f"{len(federated.held_out.x)} test samples"
    )
    for k, count in enumerate(counts[:CLIENTS]):
        held = ", ".join(f"{c}: {n}" for c, n in enumerate(count) if n)
        out.print(
            f"  client {k:3}  {sizes[k]:5} samples   {held}", overflow="ellipsis", no_wrap=True
        )
    if len(counts) > CLIENTS:
        out.print(f"  ... and {len(counts) - CLIENTS} more")
