"""What the commands of `fedmix federation` do."""

import json
import os
import shlex
import shutil
import signal
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedmix.cli.commands import only_experiment, show_results
from fedmix.core.errors import BadInput, FedmixError, Interrupted
from fedmix.core.signals import heard
from fedmix.experiment.spec import Experiment
from fedmix.runs.folder import locked, writing
from fedmix.runs.progress import Progress, console
from fedmix.runs.run import Run

POLL_SECONDS = 0.3


def run(
    what: str,
    nodes: int | None,
    algorithm: str | None,
    rounds: int | None,
    seed: int | None,
    settings: Sequence[str],
    out: Path,
    data: Path | None,
    *,
    min_share: float,
    timeout: float,
    tls: bool,
    policy: Path | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Start everything, show the rounds as they are done, stop everything, show the result."""
    _needs_flower()
    from fedmix.flower.policy import Policy
    from fedmix.flower.server import folder_of
    from fedmix.flower.settings import Settings
    from fedmix.flower.task import Task

    experiment = only_experiment(what, algorithm, rounds, seed, settings)
    experiment, clients = _with_nodes(experiment, nodes)
    task = Task.of(experiment)
    folder = folder_of(task, out.resolve())
    config: dict[str, Any] = {
        "clients": clients,
        "min-share": min_share,
        "timeout": timeout,
        "out": str(out.resolve()),
    }
    config |= {
        "at-once": 2 * (os.cpu_count() or 1),
        "command": shlex.join(["fedmix", *sys.argv[1:]]),
    }
    node_config: dict[str, Any] = {"data": str(data.resolve())} if data else {}
    config |= node_config
    Settings.of(config)
    task.model(
        task.held_out(config)
    )  # what is wrong with data or model is said before anything is started
    if policy:
        Policy.load(policy)
        node_config["policy"] = str(policy.resolve())
    summary = Run(experiment, folder).finished()
    if summary is None:
        if not quiet and not as_json:
            told = f"starting a SuperLink and {clients} SuperNodes; their logs are in {folder / 'flower'}"
            console().print(told, soft_wrap=True)
        title = f"{experiment.data.name} {experiment.algorithm} seed {experiment.seed} on {clients} nodes"
        alone = locked(folder, ".federation.lock")
        with (
            writing(folder),
            alone,
            _stopping(),
            Progress(title, experiment, "1/1", quiet=quiet or as_json) as progress,
        ):
            summary = _federate(experiment, folder, clients, config, node_config, progress, tls=tls)
    show_results({str(folder): summary}, quiet=quiet, as_json=as_json)


def _needs_flower() -> None:
    try:
        import flwr  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise BadInput("a federation runs on Flower; run: pip install 'fedmix[flower]'") from error


def _with_nodes(experiment: Experiment, nodes: int | None) -> tuple[Experiment, int]:
    """The experiment with one client a node."""
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
    experiment: Experiment,
    folder: Path,
    clients: int,
    config: dict[str, Any],
    node_config: dict[str, Any],
    progress: Progress,
    *,
    tls: bool,
) -> dict[str, Any]:
    from fedmix.flower.app import write_app
    from fedmix.flower.keys import make_keys
    from fedmix.flower.processes import Link

    work = folder / "flower"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    app = write_app(work / "app", experiment, config)
    keys = make_keys(work / "keys", ["localhost"], clients) if tls else None
    lines = _Lines(folder / "metrics.jsonl")
    with Link(work, keys) as link:
        for client in range(clients):
            if keys:
                link.register(client)
            link.start_node(client, **node_config)
        running = link.run(app)
        try:
            while running.poll() is None:
                for line in lines.new():
                    progress.update(line)
                if not progress.shown:
                    link.check()  # later on, rounds do without a node that is gone
                    progress.say(_latest(folder))
                time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            raise Interrupted(
                f"stopped after round {lines.read}; the same command goes on where it was"
            ) from None
        for line in lines.new():
            progress.update(line)
    summary = Run(experiment, folder).finished()
    if summary is None:
        raise FedmixError(f"the federation failed: {_why(folder, work)}")
    return summary


class _Lines:
    """The metrics of a run as they are written, without those that were there before and may be cut
    back.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.read = len(self._whole())

    def _whole(self) -> list[str]:
        return self.path.read_text().split("\n")[:-1] if self.path.is_file() else []

    def new(self) -> Iterator[dict[str, Any]]:
        lines = self._whole()
        self.read = min(self.read, len(lines))
        for line in lines[self.read :]:
            self.read += 1
            yield json.loads(line)


def _latest(folder: Path) -> str:
    """What the server last noticed."""
    log = folder / "federation.log"
    lines = log.read_text().splitlines() if log.is_file() else []
    return (
        textwrap.shorten(lines[-1].split(" ", 3)[-1], 60, placeholder=" …")
        if lines
        else "waiting for clients"
    )


def _why(folder: Path, work: Path) -> str:
    """The last complaint in the server's log, or where to look."""
    log = folder / "federation.log"
    errors = (
        [line for line in log.read_text().splitlines() if " ERROR " in line]
        if log.is_file()
        else []
    )
    return errors[-1].partition(" ERROR ")[2] if errors else f"the logs in {work} say why"


@contextmanager
def _stopping() -> Iterator[None]:
    """Being asked to end is the same as Ctrl-C, so that the processes are cleaned up."""

    def stop() -> None:
        raise KeyboardInterrupt

    from fedmix.flower.processes import ENDING

    with heard(
        [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN], stop
    ):  # nohup has one ignored
        yield


def keys(folder: Path, hosts: list[str], clients: int) -> None:
    """Make them, and say what goes where."""
    _needs_flower()
    from fedmix.flower.keys import make_keys

    try:
        made = make_keys(folder, hosts, clients)
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
