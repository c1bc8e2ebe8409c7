"""Trackers: where people watch their runs, such as TensorBoard, W&B and MLflow.

Each has a file named after it, which registers a context manager: it takes the run folder and the
settings, and yields a function that is called with the numbers of every round. What ends a run
early is raised where it yields. Another package adds its own as it adds an algorithm
(`core/registry.py`).
"""

import json
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from fedmix.core.errors import BadInput, FedmixWarning, first_line
from fedmix.core.files import flat, parse_json, write_whole
from fedmix.core.nearest import choice
from fedmix.core.registry import TRACKERS
from fedmix.runs.folder import as_json, read
from fedmix.runs.metrics import metrics_of
from fedmix.runs.run import Listener
from fedmix.training.federation import Federation
from fedmix.training.rounds import Round

FILE = "tracking.json"  # in a run folder: the names of its runs elsewhere


@contextmanager
def tracking(
    names: str, folder: Path, settings: Mapping[str, Any], listen: Listener = lambda _: None
) -> Iterator[Listener]:
    """Yield a listener that calls `listen` and tells these trackers; nobody waits for one that
    fails, which is warned of.

    Args:
        names: Names of trackers, split by commas; empty for none.
        folder: The run folder.
        settings: The settings of the run, in sections.
        listen: Also called with the numbers of each round.

    Raises:
        BadInput: A tracker is unknown, or its package is not installed.
    """
    wanted = list(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    for name in wanted:
        if name not in TRACKERS:
            raise BadInput(f"tracker {name!r} is unknown; {choice(name, TRACKERS)}")
    told = dict(flat(settings))
    with ExitStack() as stack:
        logs = [stack.enter_context(_Safe(name, TRACKERS[name](folder, told))) for name in wanted]

        def tell(line: dict[str, Any]) -> None:
            listen(line)
            for log in logs:
                log(line)

        yield tell


@contextmanager
def track(
    names: str, folder: str | Path, settings: Mapping[str, Any] | None = None
) -> Iterator[Callable[[Round, Federation], None]]:
    """Yield a callback for `Federation(callbacks=[...])` that tells trackers of every round.

    Args:
        names: Names of trackers, split by commas.
        folder: Where TensorBoard's and W&B's files go; its name is that of the run.
        settings: What to note of the run.

    Raises:
        BadInput: A tracker is unknown, or its package is not installed.
    """
    started, folder = time.monotonic(), Path(folder)
    with tracking(names, folder, settings or {}) as log:

        def callback(done: Round, federation: Federation) -> None:
            folder.mkdir(parents=True, exist_ok=True)
            log(metrics_of(done, federation, time.monotonic() - started))

        yield callback


class _Safe(AbstractContextManager[Listener]):
    """A tracker that warns instead of failing, and is not called again then."""

    def __init__(self, name: str, tracker: AbstractContextManager[Listener]) -> None:
        self.name, self.tracker = name, tracker
        self.log: Listener | None = None

    def __enter__(self) -> Listener:
        self.log = self.tracker.__enter__()
        return self.tell

    def tell(self, line: dict[str, Any]) -> None:
        """Tell it the numbers of a round."""
        try:
            if self.log:
                self.log(line)
        except Exception as error:  # whatever another library raises
            self.lost(error)

    def lost(self, error: Exception) -> None:
        """Warn that it failed."""
        self.log = None
        said = f"{self.name} is told nothing more ({first_line(error)}); the run itself goes on"
        warnings.warn(said, FedmixWarning, stacklevel=2)

    def __exit__(self, *raised: Any) -> None:
        try:
            self.tracker.__exit__(*raised)
        except Exception as error:
            self.lost(error)


def numbers(line: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a round, by name, without the round itself."""
    return {name: value for name, value in line.items() if name != "round" and value is not None}


def remembered(folder: Path, tracker: str) -> str:
    """Return what a tracker calls the run in a folder; empty if it does not know it yet."""
    try:
        return str(parse_json(read(folder / FILE))[tracker])
    except (BadInput, KeyError, TypeError, ValueError):
        return ""


def remember(folder: Path, tracker: str, name: str) -> None:
    """Note in a run folder what a tracker calls the run, so that it goes on there."""
    try:
        known = dict(json.loads((folder / FILE).read_text()))
    except (OSError, TypeError, ValueError):
        known = {}
    write_whole(folder / FILE, as_json(known | {tracker: name}))
