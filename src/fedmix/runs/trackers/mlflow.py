"""MLflow; needs `pip install 'fedmix[mlflow]'`.

MLFLOW_TRACKING_URI says where runs go, and MLFLOW_EXPERIMENT_NAME to which experiment.
"""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedmix.core.errors import BadInput, Interrupted
from fedmix.core.registry import TRACKERS
from fedmix.runs.run import Listener
from fedmix.runs.trackers import numbers, remember, remembered

EXPERIMENT = "fedmix"
FEW = 100  # settings that MLflow takes at once


@TRACKERS.add("mlflow", "MLflow")
@contextmanager
def mlflow(folder: Path, settings: Mapping[str, str]) -> Iterator[Listener]:
    """Yield a listener that logs every number of a round to MLflow; a run that goes on does so
    there.

    Nothing is made before the first round. Raises BadInput if mlflow is not installed.
    """
    try:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param
    except ImportError as error:
        raise BadInput("mlflow needs its package; run: pip install 'fedmix[mlflow]'") from error
    client: Any = None
    run = ""

    def begin() -> str:
        if (known := remembered(folder, "mlflow")) and _is_there(client, known):
            client.update_run(known, status="RUNNING")
            return known
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        there = client.get_experiment_by_name(name)
        experiment = there.experiment_id if there else client.create_experiment(name)
        new = str(client.create_run(experiment, run_name=folder.name).info.run_id)
        params = [Param(key, value) for key, value in settings.items()]
        for start in range(0, len(params), FEW):
            client.log_batch(new, params=params[start : start + FEW])
        remember(folder, "mlflow", new)
        return new

    def listen(line: dict[str, Any]) -> None:
        nonlocal client, run
        client = client or MlflowClient()
        run = run or begin()
        now = int(time.time() * 1000)
        told = numbers(line).items()
        client.log_batch(run, [Metric(name, value, now, line["round"]) for name, value in told])

    status = "FAILED"
    try:
        yield listen
        status = "FINISHED"
    except (Interrupted, KeyboardInterrupt):
        status = "KILLED"
        raise
    finally:
        if run:
            client.set_terminated(run, status)


def _is_there(client: Any, run: str) -> bool:
    from mlflow.exceptions import MlflowException

    try:
        client.get_run(run)
    except MlflowException:  # it was on another server, or somebody removed it
        return False
    return True
