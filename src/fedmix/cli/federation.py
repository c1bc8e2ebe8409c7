"""`fedmix federation run`, `keys` and `check`."""

import json
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from click import ClickException

from fedmix.cli import options
from fedmix.core.errors import BadInput
from fedmix.core.signals import heard

app = typer.Typer(
    help="A real federation on Flower: every client a process of its own.", no_args_is_help=True
)


@app.command(
    cls=options.Command, epilog="Example:  fedmix federation run digits --nodes 5 --rounds 5"
)
def run(
    what: Annotated[
        str, typer.Argument(metavar="PRESET|FILE.toml", help="A preset or an experiment file.")
    ] = "digits",
    nodes: Annotated[
        int | None, typer.Option(help="How many clients, each a SuperNode; as the experiment says.")
    ] = None,
    algorithm: Annotated[
        str | None, typer.Option(help="As for fedmix run; globalmix is refused.")
    ] = None,
    rounds: options.Rounds = None,
    seed: Annotated[int | None, typer.Option(help="The seed; 0, or the file's.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting by dotted path."),
    ] = None,
    min_share: Annotated[
        float, typer.Option(help="The share of a round's clients that must reply.")
    ] = 0.5,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for a round's replies.")] = 600.0,
    track: options.Track = "",
    metrics_address: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve the last round's metrics there, in Prometheus' format.",
        ),
    ] = "",
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
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Train over a SuperLink and SuperNodes on this machine, all real processes; a stopped run goes
    on where it was.
    """
    _check_flower()
    from fedmix.cli.output import show_results
    from fedmix.experiment.sweep import only_experiment
    from fedmix.flower.local import federate, with_nodes
    from fedmix.flower.policy import Policy
    from fedmix.flower.prometheus import exposed
    from fedmix.flower.server import folder_of
    from fedmix.flower.settings import Settings
    from fedmix.flower.task import Task
    from fedmix.runs.folder import locked, writing
    from fedmix.runs.progress import Progress, console
    from fedmix.runs.run import Run
    from fedmix.runs.trackers import tracking

    experiment = only_experiment(what, algorithm, rounds, seed, settings or [])
    experiment, changed = with_nodes(experiment, nodes, data)
    clients = int(experiment.data.clients)
    task = Task.of(experiment)
    folder = folder_of(task, out.resolve())
    node_config: dict[str, Any] = {"data": str(data.resolve())} if data else {}
    config: dict[str, Any] = {
        "clients": clients,
        "min-share": min_share,
        "timeout": timeout,
        "out": str(out.resolve()),
        "at-once": 2 * (os.cpu_count() or 1),
        "track": track,
        "metrics-address": metrics_address,
        "command": options.command_line(),
        **node_config,
    }
    # what is wrong with settings, trackers, address, data or model is raised before any start
    Settings.of(config)
    with tracking(track, folder, {}) as listen, exposed(metrics_address, listen):
        task.model(task.held_out(config))
    if policy:
        if Policy.load(policy).ledger:
            raise BadInput(
                f"{policy} names a ledger, in which all clients of this machine would count "
                "together; leave it out, and what needs it, or start nodes by hand"
            )
        node_config["policy"] = str(policy.resolve())
    this = Run(experiment, folder)
    summary = this.finished()
    if summary is None:
        if not quiet and not as_json:
            if changed:
                fit = ", ".join(f"{path}={value}" for path, value in changed.items())
                console().print(f"so that {clients} nodes hold the data: {fit}", soft_wrap=True)
            console().print(
                f"starting a SuperLink and {clients} SuperNodes; their logs are in "
                f"{folder / 'flower'}",
                soft_wrap=True,
            )
        name, seed = experiment.data.name, experiment.seed
        title = f"{name} {experiment.algorithm} seed {seed} on {clients} nodes"
        with (
            writing(folder),
            locked(folder, ".federation.lock"),
            _stop_on_signals(),
            Progress(title, experiment, this.begun(), quiet=quiet or as_json) as progress,
        ):
            summary = federate(experiment, folder, clients, config, node_config, progress, tls=tls)
    show_results({str(folder): summary}, quiet=quiet, as_json=as_json)


@app.command(epilog="Example:  fedmix federation keys keys --host learn.example.org --clients 4")
def keys(
    folder: Annotated[Path, typer.Argument(help="A new folder for them.")],
    host: Annotated[
        list[str] | None,
        typer.Option(help="A name or address of the server, as nodes call it; repeatable."),
    ] = None,
    clients: Annotated[int, typer.Option(help="How many clients.")] = 4,
) -> None:
    """Make certificates for TLS and a key for each client's node."""
    _check_flower()
    from fedmix.flower.keys import make_keys
    from fedmix.runs.progress import console

    try:
        made = make_keys(folder, host or ["localhost"], clients)
    except OSError as error:
        raise BadInput(
            f"{folder} cannot be written ({error.strerror}); choose another folder"
        ) from error
    for files, about in (
        (f"{made.ca}", "to every machine"),
        (f"{made.certificate}, {made.key}", "to the server; the key stays secret"),
        (
            f"{made.node(0)} ... {made.node(clients - 1).name}",
            "one to each client's machine; secret",
        ),
        (f"{made.node(0).with_suffix('.pub')} ...", "to the server, which registers them"),
    ):
        console(sys.stdout).print(f"{files}  {about}", soft_wrap=True)


@app.command(
    epilog="Example:  fedmix federation check my-app --node 'partition-id=0 data=\"/srv/digits\"' "
    "--nodes-only"
)
def check(
    folder: Annotated[Path, typer.Argument(metavar="APP", help="The folder of the Flower app.")],
    node: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONFIG",
            help="A node's --node-config, whose data and policy are here; repeatable.",
        ),
    ] = None,
    run_config: Annotated[
        str, typer.Option(metavar="CONFIG", help="As for flwr run: settings for this run.")
    ] = "",
    keys_folder: Annotated[
        Path | None, typer.Option("--keys", help="A folder of certificates and keys.")
    ] = None,
    nodes_only: Annotated[
        bool, typer.Option("--nodes-only", help="The server's samples are not here.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Tell what would fail in a federation: versions, settings, data, policies, keys.

    Nothing is sent, and nothing leaves this machine.
    """
    _check_flower()
    from flwr.common.config import parse_config_args

    from fedmix.flower.check import findings
    from fedmix.runs.progress import console

    def parsed(text: str) -> dict[str, Any]:
        try:
            return dict(parse_config_args([text]))
        except (ValueError, ClickException) as error:
            raise BadInput(
                f"{text!r:.80} is no configuration; write key=value key=value"
            ) from error

    logging.getLogger("fedmix.flower").addHandler(logging.NullHandler())  # what it says is shown
    found = []
    nodes = [parsed(text) for text in node or []]
    for one in findings(folder, parsed(run_config), nodes, keys_folder, server=not nodes_only):
        found.append(one)
        if not as_json:
            mark = "ok  " if one.holds else "FAIL"
            console(sys.stdout).print(f"{mark} {one.what}: {one.said}", soft_wrap=True)
    if as_json:
        print(json.dumps([one._asdict() for one in found], indent=1, ensure_ascii=False))
    if wrong := sum(not one.holds for one in found):
        raise BadInput(f"{wrong} of these would fail; mend them before the federation runs")


def _check_flower() -> None:
    """Raise BadInput if Flower is not installed."""
    try:
        import flwr  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise BadInput("a federation runs on Flower; run: pip install 'fedmix[flower]'") from error


@contextmanager
def _stop_on_signals() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP as Ctrl-C, so that the processes are stopped."""
    from fedmix.flower.processes import ENDING

    def stop() -> None:
        raise KeyboardInterrupt

    handled = [n for n in ENDING if signal.getsignal(n) is not signal.SIG_IGN]  # as nohup sets it
    with heard(handled, stop):
        yield
