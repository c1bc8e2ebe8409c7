"""Weights & Biases; needs `pip install 'fedmix[wandb]'`.

W&B's own settings hold, such as WANDB_PROJECT, WANDB_ENTITY and WANDB_MODE=offline.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from fedmix.core.errors import BadInput
from fedmix.core.registry import TRACKERS
from fedmix.runs.run import Listener
from fedmix.runs.trackers import numbers, remember, remembered

PROJECT = "fedmix"


@TRACKERS.add("wandb", "Weights & Biases")
@contextmanager
def wandb(folder: Path, settings: Mapping[str, str]) -> Iterator[Listener]:
    """Yield a listener that logs every number of a round to W&B; a run that goes on does so there.

    Nothing is made before the first round. Raises BadInput if wandb is not installed, or if nobody
    is logged in.
    """
    try:
        import wandb as client
    except ImportError as error:
        raise BadInput("wandb needs its package; run: pip install 'fedmix[wandb]'") from error
    if client.setup().settings.mode == "online" and not client.login(prompt=False):
        raise BadInput(
            "wandb does not know who you are; run: wandb login, or set WANDB_MODE=offline"
        )
    run: Any = None

    def listen(line: dict[str, Any]) -> None:
        nonlocal run
        if run is None:
            name = remembered(folder, "wandb") or uuid4().hex
            remember(folder, "wandb", name)
            run = client.init(
                project=os.environ.get("WANDB_PROJECT", PROJECT), name=folder.name, id=name,
                resume="allow", dir=folder, config=dict(settings), allow_val_change=True,
                settings=client.Settings(silent=True, console="off"), reinit="create_new",
            )  # fmt: skip
        run.log(numbers(line), step=line["round"])

    code = 1
    try:
        yield listen
        code = 0
    finally:
        if run is not None:
            run.finish(exit_code=code)
