"""`fedmix federation run` and `keys`."""

import json
import os
import shutil
import signal
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedmix.cli import options
from fedmix.core.errors import BadInput, FedmixError, Interrupted
from fedmix.core.signals import heard

if TYPE_CHECKING:
    from fedmix.experiment.spec import Experiment
    from fedmix.runs.progress import Progress

POLL_SECONDS = 0.3  # between two looks at the run's files

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
    as_json: Annotated[
        bool, typer.Option("--json", help="The result as JSON on standard output.")
    ] = False,
) -> None:
    """Train over a SuperLink and SuperNodes on this machine, all real processes; a stopped run goes
    on where it was.
    """
    _check_flower()
    from fedmix.cli.output import show_results
    from fedmix.experiment.sweep import only_experiment
    from fedmix.flower.policy import Policy
    from fedmix.flower.server import folder_of
    from fedmix.flower.settings import Settings
    from fedmix.flower.task import Task
    from fedmix.runs.folder import locked, writing
    from fedmix.runs.progress import Progress, console
    from fedmix.runs.run import Run

    experiment = only_experiment(what, algorithm, rounds, seed, settings or [])
    experiment, clients = _with_nodes(experiment, nodes)
    task = Task.of(experiment)
    folder = folder_of(task, out.resolve())
    node_config: dict[str, Any] = {"data": str(data.resolve())} if data else {}
    config: dict[str, Any] = {
        "clients": clients,
        "min-share": min_share,
        "timeout": timeout,
        "out": str(out.resolve()),
        "at-once": 2 * (os.cpu_count() or 1),
        "command": options.command_line(),
        **node_config,
    }
    Settings.of(config)
    task.model(task.held_out(config))  # raises what is wrong with data or model before any start
    if policy:
        Policy.load(policy)
        node_config["policy"] = str(policy.resolve())
    summary = Run(experiment, folder).finished()
    if summary is None:
        if not quiet and not as_json:
            logs = folder / "flower"
            console().print(
                f"starting a SuperLink and {clients} SuperNodes; their logs are in {logs}",
                soft_wrap=True,
            )
        name, seed = experiment.data.name, experiment.seed
        title = f"{name} {experiment.algorithm} seed {seed} on {clients} nodes"
        with (
            writing(folder),
            locked(folder, ".federation.lock"),
            _stop_on_signals(),
            Progress(title, experiment, "1/1", quiet=quiet or as_json) as progress,
        ):
            summary = _federate(experiment, folder, clients, config, node_config, progress, tls=tls)
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


def _check_flower() -> None:
    """Raise BadInput if Flower is not installed."""
    try:
        import flwr  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise BadInput("a federation runs on Flower; run: pip install 'fedmix[flower]'") from error


def _with_nodes(experiment: "Experiment", nodes: int | None) -> tuple["Experiment", int]:
    """Return the experiment with one client a node, and the number of nodes."""
    if not experiment.takes("data.clients"):
        raise BadInput(
            f"data {experiment.data.name!r} has no setting for its number of clients; start nodes "
            "by hand (docs/federation.md)"
        )
    if nodes is None:
        return experiment, int(experiment.data.clients)
    if nodes < 1:
        raise BadInput(f"--nodes {nodes}: at least one is needed")
    per_round = min(nodes, experiment.training.clients_per_round)
    return experiment.with_settings(
        {"data.clients": nodes, "training.clients_per_round": per_round}
    ), nodes


def _federate(
    experiment: "Experiment",
    folder: Path,
    clients: int,
    config: dict[str, Any],
    node_config: dict[str, Any],
    progress: "Progress",
    *,
    tls: bool,
) -> dict[str, Any]:
    """Start all processes, show rounds as they are done, stop all, and return the summary.

    Raises:
        FedmixError: a process ended before the first round, or the run failed.
        Interrupted: Ctrl-C was pressed, or a signal asked this process to end.
    """
    from fedmix.flower.app import write_app
    from fedmix.flower.keys import make_keys
    from fedmix.flower.processes import Link
    from fedmix.runs.run import Run

    work = folder / "flower"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    flower_app = write_app(work / "app", experiment, config)
    keys = make_keys(work / "keys", ["localhost"], clients) if tls else None
    lines = _NewLines(folder / "metrics.jsonl")
    with Link(work, keys) as link:
        for client in range(clients):
            if keys:
                link.register(client)
            link.start_node(client, **node_config)
        running = link.run(flower_app)
        try:
            while running.poll() is None:
                for line in lines.read():
                    progress.update(line)
                if not progress.shown:
                    link.check()  # after the first round, the server does without a lost node
                    progress.say(_latest(folder))
                time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            raise Interrupted(
                f"stopped after round {lines.count}; the same command goes on where it was"
            ) from None
        for line in lines.read():
            progress.update(line)
    summary = Run(experiment, folder).finished()
    if summary is None:
        raise FedmixError(f"the federation failed: {_why(folder, work)}")
    return summary


class _NewLines:
    """Metrics of a run as they are written.

    Lines that a resumed run had before are skipped; the server may cut some of them back.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = len(self._complete())

    def _complete(self) -> list[str]:
        return self.path.read_text().split("\n")[:-1] if self.path.is_file() else []

    def read(self) -> Iterator[dict[str, Any]]:
        lines = self._complete()
        self.count = min(self.count, len(lines))
        for line in lines[self.count :]:
            self.count += 1
            yield json.loads(line)


def _latest(folder: Path) -> str:
    """Return the last message of the server's log, shortened."""
    log = folder / "federation.log"
    lines = log.read_text().splitlines() if log.is_file() else []
    return (
        textwrap.shorten(lines[-1].split(" ", 3)[-1], 60, placeholder=" …")
        if lines
        else "waiting for clients"
    )


def _why(folder: Path, work: Path) -> str:
    """Return the last error in the server's log, or where to look."""
    log = folder / "federation.log"
    errors = (
        [line for line in log.read_text().splitlines() if " ERROR " in line]
        if log.is_file()
        else []
    )
    return errors[-1].partition(" ERROR ")[2] if errors else f"the logs in {work} say why"


@contextmanager
def _stop_on_signals() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP as Ctrl-C, so that the processes are stopped."""
    from fedmix.flower.processes import ENDING

    def stop() -> None:
        raise KeyboardInterrupt

    handled = [n for n in ENDING if signal.getsignal(n) is not signal.SIG_IGN]  # as nohup sets it
    with heard(handled, stop):
        yield
