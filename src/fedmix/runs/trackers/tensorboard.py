"""TensorBoard, in the run folder; needs `pip install 'fedmix[tensorboard]'`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedmix.core.errors import BadInput
from fedmix.core.registry import TRACKERS
from fedmix.runs.run import Listener
from fedmix.runs.trackers import numbers


@TRACKERS.add("tensorboard", "TensorBoard, into the run's folder")
@contextmanager
def tensorboard(folder: Path, settings: Mapping[str, str]) -> Iterator[Listener]:  # noqa: ARG001
    """Yield a listener that writes every number of a round to `folder`/tensorboard.

    No file is written before the first round. Raises BadInput if tensorboard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise BadInput(
            "tensorboard needs its package; run: pip install 'fedmix[tensorboard]'"
        ) from error
    writer: Any = None

    def listen(line: dict[str, Any]) -> None:
        nonlocal writer
        writer = writer or SummaryWriter(str(folder / "tensorboard"))
        for name, value in numbers(line).items():
            writer.add_scalar(name, value, line["round"])

    try:
        yield listen
    finally:
        if writer:
            writer.close()
