"""TensorBoard logging of a run's metrics, for those who have it (`pip install
'fedmix[tensorboard]'`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedmix.core.errors import BadInput
from fedmix.runs.run import Listener


@contextmanager
def logging(folder: Path) -> Iterator[Listener]:
    """Gives a listener that writes every number of a round under `folder`/tensorboard, by round;
    nothing before the first.
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
