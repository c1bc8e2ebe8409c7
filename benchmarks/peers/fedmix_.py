"""fedmix without any setting of how it computes.

One process is what a script has. Several, started by torchrun, are what `fedmix run` starts by
itself on a CPU.
"""

import os

import numpy as np
import torch
from in_torch import arrays, module
from measure import Job, job
from workload import SEED

from fedmix import Federation, FedMix, Supervised, Training, data
from fedmix.training.engines import Vectorised


def main(job: Job) -> None:
    work = job.workload
    x, y = work.data()
    x, y = x.reshape(-1, *work.shape), y.reshape(-1)
    owned = np.arange(len(x)).reshape(work.clients, work.samples)
    federation = Federation(
        module(work, ours=True),
        data.from_arrays(x, y, list(owned), test=(x[:1], y[:1]), classes=work.classes),
        FedMix(lam=work.lam) if job.algorithm == "fedmix" else Supervised(),
        Training(work.per_round, work.epochs, work.batch, work.lr, momentum=work.momentum),
        engine=None if job.device == "cpu" else Vectorised(device=job.device),
        seed=SEED,
    )
    # of a whole run, which decides whether to compile, the first rounds
    rounds = federation.run(work.whole_rounds, evaluate_every=work.whole_rounds)
    wait = torch.cuda.synchronize if job.device == "cuda" else lambda: None
    job.start()
    for _ in range(job.total):
        next(rounds)
        wait()
        job.tick(lambda: arrays(federation.params.values()))
    if os.environ.get("RANK", "0") == "0":
        job.save("fedmix", arrays(federation.params.values()), ["torch", "numpy"])


if __name__ == "__main__":
    main(job())
