"""A federation on this machine: start its processes, watch them, and say why they failed."""

import json
import math
import shutil
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedmix.core.errors import BadInput, FedmixError, Interrupted
from fedmix.experiment.spec import Experiment
from fedmix.flower.app import write_app
from fedmix.flower.keys import make_keys
from fedmix.flower.processes import Link
from fedmix.runs.progress import Progress
from fedmix.runs.run import Run

POLL_SECONDS = 0.3  # between two looks at the run's files
STARTING = 8  # nodes that start at a time; a SuperLink that is busy with more answers late
ENDED_SECONDS = 3.0  # a server app that has not been seen for so long has ended
FULL = ("database or disk is full", "No space left on device", "Errno 28")
BY_CLASS = ("classes", "random-classes")  # partitions in which a client has some classes only
GOES_ON = "the same command goes on where it was"


def with_nodes(
    experiment: Experiment, nodes: int | None, root: Path | None
) -> tuple[Experiment, dict[str, int]]:
    """Return an experiment with one client a node, whose settings so many clients can hold.

    Args:
        experiment: The experiment.
        nodes: Number of nodes; None for the experiment's own number of clients.
        root: Folder with the hub's files; None downloads them.

    Returns:
        The experiment, and what was changed besides the number of clients.

    Raises:
        BadInput: The data have no setting for their number of clients, or `nodes` is below 1.
    """
    if not experiment.takes("data.clients"):
        raise BadInput(
            f"data {experiment.data.name!r} has no setting for its number of clients; start nodes "
            "by hand (docs/federation.md)"
        )
    if nodes is None:
        return experiment, {}
    if nodes < 1:
        raise BadInput(f"--nodes {nodes}: at least one is needed")
    changed = {}
    if experiment.build_training().per_round(nodes) > nodes:
        changed["training.clients_per_round"] = nodes
    if experiment.exchange and experiment.exchange.average > nodes:
        changed["exchange.average"] = nodes
    if nodes < experiment.data.clients and experiment.data.partition in BY_CLASS:
        least = math.ceil((experiment.build_data(root).classes or 0) / nodes)
        if least > experiment.data.classes_per_client:
            changed["data.classes_per_client"] = least
    return experiment.with_settings({"data.clients": nodes, **changed}), changed


def federate(
    experiment: Experiment,
    folder: Path,
    clients: int,
    config: dict[str, Any],
    node_config: dict[str, Any],
    progress: Progress,
    *,
    tls: bool,
) -> dict[str, Any]:
    """Start all processes, show rounds as they are done, stop all, and return the summary.

    Args:
        experiment: What the federation trains.
        folder: The run folder; logs go to a folder of their own in its folder flower/.
        clients: Number of clients.
        config: Settings of the server, see `fedmix.flower.settings.Settings`.
        node_config: Configuration of every node.
        progress: Shows the rounds, and what the server warns of.
        tls: Make certificates and keys, and use them.

    Raises:
        FedmixError: A process ended before the first round, or the run failed.
        Interrupted: Ctrl-C was pressed, or a signal asked this process to end.
    """
    work = _new_attempt(folder / "flower")
    app = write_app(work / "app", experiment, config)
    keys = make_keys(work / "keys", ["localhost"], clients) if tls else None
    rounds, said = NewLines(folder / "metrics.jsonl"), NewLines(folder / "federation.log")
    lost = set[str]()
    latest, errors = "waiting for clients", list[str]()

    def look() -> None:
        nonlocal latest
        for line in rounds.read():
            progress.update(json.loads(line))
        for line in said.read():
            latest = line.split(" ", 3)[-1]
            if " WARNING " in line:
                progress.note(latest)
            if " ERROR " in line:
                errors.append(latest)

    with _told_if_full(work), Link(work, keys) as link:
        server = _Server(link)
        for client in range(clients):
            if keys:
                link.register(client)
            link.start_node(client, **node_config)
            link.wait_for_nodes(STARTING - 1)
        running = link.run(app)
        try:
            while running.poll() is None and not server.ended():
                look()
                if not progress.shown:
                    link.check()
                    progress.say(textwrap.shorten(latest, 60, placeholder=" …"))
                for name, why in link.ended():  # after the first round, rounds go on without them
                    if name not in lost:
                        progress.note(why)
                    lost.add(name)
                time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            raise Interrupted(f"stopped after round {rounds.count}; {GOES_ON}") from None
        look()
        summary = Run(experiment, folder).finished()
        if summary is None:
            raise FedmixError(f"the federation failed: {_why(work, errors, rounds.count)}")
        return summary


def _new_attempt(folder: Path) -> Path:
    """Make a folder for the files of a new attempt; of earlier ones, only the logs stay."""
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.rglob("*"):
        if left.is_file() and left.suffix != ".log":
            left.unlink()
    for empty in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
        if not any(empty.iterdir()):
            empty.rmdir()
    attempts = [int(path.name) for path in folder.iterdir() if path.name.isdigit()]
    work = folder / str(max(attempts, default=0) + 1)
    work.mkdir()
    return work


class _Server:
    """Whether the server app has ended; Flower tells of one that was killed a minute later."""

    def __init__(self, link: Link) -> None:
        self.link, self.seen = link, math.inf

    def ended(self) -> bool:
        """Whether the app ran once, and has not for some seconds."""
        if self.link.serves():
            self.seen = time.monotonic()
        return time.monotonic() - self.seen > ENDED_SECONDS


class NewLines:
    """Complete lines of a file as they are written, without those that it had before.

    The server may cut back lines that it had written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = len(self._complete())

    def _complete(self) -> list[str]:
        return self.path.read_text().split("\n")[:-1] if self.path.is_file() else []

    def read(self) -> Iterator[str]:
        """Yield the lines that came since the last call."""
        lines = self._complete()
        self.count = min(self.count, len(lines))
        for line in lines[self.count :]:
            self.count += 1
            yield line


def _why(work: Path, errors: list[str], rounds: int) -> str:
    """Return why the server app ended: its last error, or that it was killed."""
    if errors:
        return errors[-1]
    after = f"after round {rounds}" if rounds else "before the first round"
    return (
        f"its server ended {after} without saying why, as if it had been killed; {GOES_ON}; the "
        f"logs are in {work}"
    )


@contextmanager
def _told_if_full(work: Path) -> Iterator[None]:
    """Tell of a full disk in the place of what it led to; Flower's programs do not."""
    try:
        yield
    except (FedmixError, OSError) as error:
        logs = [path.read_text(errors="replace") for path in work.glob("*.log")]
        full = shutil.disk_usage(work).free == 0
        if full or any(words in log for log in logs for words in FULL):
            raise FedmixError(f"the disk of {work} is full; make room, and {GOES_ON}") from error
        raise
