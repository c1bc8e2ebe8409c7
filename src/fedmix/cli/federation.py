"""The commands of `fedmix federation` and their options.

What they do is in `federating.py`, imported when one runs.
"""

from pathlib import Path
from typing import Annotated

import typer

federation_app = typer.Typer(
    help="A real federation on Flower: every client a process of its own.", no_args_is_help=True
)


@federation_app.command("run", epilog="Example:  fedmix federation run digits --nodes 5 --rounds 5")
def federation_run(
    what: Annotated[
        str, typer.Argument(metavar="PRESET|FILE.toml", help="A preset or an experiment file.")
    ] = "digits",
    nodes: Annotated[
        int | None, typer.Option(help="How many clients, each a SuperNode; as the experiment says.")
    ] = None,
    algorithm: Annotated[
        str | None, typer.Option(help="As for fedmix run; globalmix is refused.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="How many rounds.")] = None,
    seed: Annotated[int | None, typer.Option(help="The seed; 0, or the file's.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting by dotted path."),
    ] = None,
    min_share: Annotated[
        float, typer.Option(help="The share of a round's clients that must reply.")
    ] = 0.5,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for a round's replies.")] = 600.0,
    tls: Annotated[
        bool, typer.Option("--tls", help="With certificates and keys, made for this run.")
    ] = False,
    policy: Annotated[Path | None, typer.Option(help="A policy file for every client.")] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="A folder with the hub's files, instead of a download."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder in which the run gets a folder.")] = Path(
        "runs"
    ),
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress, only the result.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="The result as JSON on standard output.")
    ] = False,
) -> None:
    """Train over a SuperLink and SuperNodes on this machine, all real processes; a stopped run goes
    on where it was.
    """
    from fedmix.cli import federating

    federating.run(
        what, nodes, algorithm, rounds, seed, settings or [], out, data,
        min_share=min_share, timeout=timeout, tls=tls, policy=policy, quiet=quiet, as_json=as_json,
    )  # fmt: skip


@federation_app.command(
    "keys", epilog="Example:  fedmix federation keys keys --host learn.example.org --clients 4"
)
def federation_keys(
    folder: Annotated[Path, typer.Argument(help="A new folder for them.")],
    host: Annotated[
        list[str] | None,
        typer.Option(help="A name or address of the server, as nodes call it; repeatable."),
    ] = None,
    clients: Annotated[int, typer.Option(help="How many clients.")] = 4,
) -> None:
    """Make certificates for TLS and a key for each client's node."""
    from fedmix.cli import federating

    federating.keys(folder, host or ["localhost"], clients)
