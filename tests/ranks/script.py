"""What a user's script does under torchrun; prints what the test looks at."""

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

RANK = int(os.environ["RANK"])


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
        callbacks=[lambda done, _: print(f"round {done.round} on {RANK}", flush=True)],
    )  # fmt: skip


def main(folder: str) -> None:
    federation = made(Warns())
    summary = record(federation, folder, 2, quiet=True)
    print(f"{RANK} has {summary['rounds']} rounds, {summary['last']}", flush=True)
    for other in (made(Warns(), seed=RANK), made(Warns(refused=3))):
        try:
            next(other.run(1))
        except BadInput as error:
            print(f"{RANK} refuses: {error}", flush=True)
        except Exception as error:
            print(f"{RANK} fails: {error}", flush=True)
    print(f"{RANK} is at {Path(folder, 'summary.json').is_file()}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
