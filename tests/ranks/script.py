"""What a user's script does under torchrun; writes what the test looks at, a file by rank."""

import os
import sys
import warnings
from pathlib import Path

from torch import Tensor

from fedmix import BadInput, Federation, Objective, Supervised, Training, record
from fedmix.core.errors import FedmixWarning
from fedmix.core.types import Batch, Params
from fedmix.models import Model, initialised
from fedmix.training.engines import Sequential
from tests.synthetic import SHAPES, federated

RANK = int(os.environ.get("RANK", "0"))


def say(text: str) -> None:
    with Path(f"{sys.argv[1]}-{RANK}.txt").open("a") as file:
        file.write(f"{text}\n")


class Warns(Supervised):
    """Warns in every step, and refuses batches of one size."""

    def __init__(self, refused: int | None = None) -> None:
        self.refused = refused

    def __call__(self, model: Model, params: Params, anchor: Params, batch: Batch) -> Tensor:
        warnings.warn(f"rank {RANK} takes small steps", FedmixWarning, stacklevel=1)
        if len(batch.y) == self.refused:
            raise ValueError("such a batch is not for me")
        return super().__call__(model, params, anchor, batch)


def made(objective: Objective, seed: int = 1) -> Federation:
    module, data = initialised(SHAPES["digits_cnn"][0], seed), federated("digits_cnn", (8, 3))
    return Federation(
        module, data, objective, Training(2, batch_size=8), engine=Sequential(),
        callbacks=[lambda done, _: say(f"round {done.round} on {RANK}")],
    )  # fmt: skip


def main(folder: str) -> None:
    federation = made(Warns())
    summary = record(federation, folder, 2, quiet=True)
    say(f"{RANK} has {summary['rounds']} rounds, {summary['last']}")
    for other in (made(Warns(), seed=RANK), made(Warns(refused=3))):
        try:
            next(other.run(1))
        except BadInput as error:
            say(f"{RANK} refuses: {error}")
        except Exception as error:
            say(f"{RANK} fails: {error}")
    say(f"{RANK} is at {Path(folder, 'summary.json').is_file()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
