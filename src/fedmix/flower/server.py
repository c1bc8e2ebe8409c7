"""The ServerApp: it runs a task in a run folder, or continues the run there, and writes a log."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedmix.core.errors import FedmixError
from fedmix.core.files import refuse_link
from fedmix.flower.prometheus import exposed
from fedmix.flower.remote import Remote
from fedmix.flower.settings import Settings
from fedmix.flower.task import Task
from fedmix.runs.folder import writing
from fedmix.runs.run import Run
from fedmix.runs.run import folder_of as run_folder
from fedmix.runs.trackers import tracking

log = logging.getLogger("fedmix.flower")


def server_app(task: Task) -> ServerApp:
    """Return the ServerApp of a task: it trains in a run folder, or continues the run there."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(grid, task, context.run_config)

    return app


def folder_of(task: Task, out: Path) -> Path:
    """Return the run folder of a task; a local run of the experiment has another one beside it."""
    return run_folder(task.experiment, out, "-flower")


def serve(grid: Grid, task: Task, config: Mapping[str, Any]) -> dict[str, Any]:
    """Run a task to its end, from its checkpoint if there is one, and return the summary.

    Args:
        grid: Flower's grid.
        task: What to run.
        config: The run configuration, see `fedmix.flower.settings.Settings`.

    Raises:
        BadInput: A setting is wrong, or the folder cannot be used.
        TooFew: Not enough clients joined or replied.
        FedmixError: The run failed in another way; every error is also logged.
    """
    settings = Settings.of(config)
    folder = folder_of(task, Path(settings.out))
    with writing(folder), _logging(folder / "federation.log"):
        run = Run(
            task.experiment,
            folder,
            lambda: Remote(grid, task, settings, config, folder / "releases.json"),
        )
        try:
            with (
                tracking(settings.track, folder, task.experiment.values(), _tell) as listen,
                exposed(settings.metrics_address, listen) as listen,
            ):
                return run.execute(listen, command=settings.command, checkpoint_seconds=0.0)
        except Exception as error:
            log.error(
                "%s%s", "" if isinstance(error, FedmixError) else f"{type(error).__name__}: ", error
            )
            raise


def _tell(line: Mapping[str, Any]) -> None:
    """Log a line about a round; metrics.jsonl has all its metrics."""
    scores = {name: f"{line[name]:.4g}" for name in ("mse", "loss") if line.get(name) is not None}
    if line.get("accuracy") is not None:
        scores = {"accuracy": f"{100 * line['accuracy']:.1f} %", **scores}
    said = "".join(f", {name} {value}" for name, value in scores.items())
    log.info(
        "round %s is done: %s of %s clients replied well%s",
        line["round"],
        line["replied"],
        line["asked"],
        said,
    )


@contextmanager
def _logging(path: Path) -> Iterator[None]:
    """Log to a file and to standard error, which Flower streams to whoever started the run."""
    refuse_link(path)
    handlers = logging.FileHandler(path), logging.StreamHandler()
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        for handler in handlers:
            log.removeHandler(handler)
            handler.close()
