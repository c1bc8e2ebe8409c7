"""fedmix: the vectorised engine with a compiled step, in one process or in several."""

import os

import numpy as np
import torch
from in_torch import arrays, module
from measure import Job, job
from workload import SEED

from fedmix import Federation, FedMix, Supervised, Training, data
from fedmix.training.engines import Vectorised


def main(job: Job) -> None:
    torch.set_num_threads(job.threads)
    work = job.workload
    x, y = work.data()
    x, y = x.reshape(-1, *work.shape), y.reshape(-1)
    owned = np.arange(len(x)).reshape(work.clients, work.samples)
    federation = Federation(
        module(work),
        data.from_arrays(x, y, list(owned), test=(x[:1], y[:1]), classes=work.classes),
        FedMix(lam=work.lam) if job.algorithm == "fedmix" else Supervised(),
        Training(work.per_round, work.epochs, work.batch, work.lr, momentum=work.momentum),
        engine=Vectorised(device=job.device, compile=True),
        seed=SEED,
    )
    # the last round, which would be evaluated, is not run
    rounds = federation.run(job.total + 1, evaluate_every=job.total + 1)
    wait = torch.cuda.synchronize if job.device == "cuda" else lambda: None
    job.start()
    for _ in range(job.total):
        next(rounds)
        wait()
        job.tick(lambda: arrays(federation.params.values()))
    if os.environ.get("RANK", "0") == "0":  # torchrun starts several workers
        job.save("fedmix", arrays(federation.params.values()), ["torch", "numpy"])


if __name__ == "__main__":
    main(job())
