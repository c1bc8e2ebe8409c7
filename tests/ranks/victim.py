"""One of several processes that train a run; told so, it is killed in the middle of a round.

python -m tests.ranks.victim FOLDER ENGINE RANK ROUND    # rank RANK dies in ROUND; 0 is never
"""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedmix.core.errors import FedmixError
from fedmix.core.ranks import here
from fedmix.experiment.presets import experiment
from fedmix.experiment.spec import Experiment
from fedmix.runs.run import Run
from fedmix.training.engines.sequential import SequentialRunner
from fedmix.training.engines.vectorised import VectorisedRunner

QUICK: dict[str, object] = {
    "rounds": 5,
    "training.epochs": 1,
    "data.clients": 8,
    "data.local_share": 0.2,
}
QUICK |= {"training.clients_per_round": 4}
RUNNERS: dict[str, Any] = {"sequential": SequentialRunner, "vectorised": VectorisedRunner}


def spec(engine: str) -> Experiment:
    """A run with client state."""
    return experiment("digits", "scaffold", seed=1).with_settings(QUICK | {"engine.name": engine})


def main(folder: str, engine: str, rank: str, last: str) -> None:
    real = RUNNERS[engine].run_round

    def run_round(self: Any, data: Any, work: Any) -> Iterator[Any]:
        for updates in real(self, data, work):
            if (here().rank, work.round) == (int(rank), int(last)):
                os.kill(os.getpid(), signal.SIGKILL)
            yield updates

    RUNNERS[engine].run_round = run_round
    try:
        Run(spec(engine), Path(folder)).execute(checkpoint_seconds=0.0)
    except FedmixError as error:
        print(f"fedmix: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main(*sys.argv[1:])
