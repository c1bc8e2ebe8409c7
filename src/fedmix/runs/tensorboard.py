"""TensorBoard logging of a run's metrics; needs `pip install 'fedmix[tensorboard]'`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedmix.core.errors import BadInput
from fedmix.runs.run import Listener


@contextmanager
def listening(folder: Path, listen: Listener, tensorboard: bool) -> Iterator[Listener]:
    """Yield `listen`, or with `tensorboard` a listener that also logs under `folder`.

    Raises:
        BadInput: tensorboard is not installed.
    """
    if not tensorboard:
        yield listen
        return
    with logging(folder) as log:

        def both(line: dict[str, Any]) -> None:
            listen(line)
            log(line)

        yield both


@contextmanager
def logging(folder: Path) -> Iterator[Listener]:
    """Yield a listener that writes every number of a round to `folder`/tensorboard.

    No file is written before the first round. Raises BadInput if tensorboard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise BadInput(
            "--tensorboard needs the package tensorboard; run: pip install 'fedmix[tensorboard]'"
        ) from error
    writer: Any = None

    def listen(line: dict[str, Any]) -> None:
        nonlocal writer
        writer = writer or SummaryWriter(str(folder / "tensorboard"))
        for name, value in line.items():
            if name != "round" and value is not None:
                writer.add_scalar(name, value, line["round"])

    try:
        yield listen
    finally:
        if writer:
            writer.close()
