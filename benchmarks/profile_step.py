"""Profiles one local step of all clients on a GPU: its time, its memory and its kernels.

    python benchmarks/profile_step.py vgg fedmix [PRECISION]

Takes a workload of `fedmix bench` and any algorithm, on random data.
"""

import sys
import time
from statistics import median

import torch
from torch.profiler import ProfilerActivity, profile

from fedmix.bench.cases import WORKLOADS, Size, federation
from fedmix.kernels.precision import called
from fedmix.training.engines.vectorised import VectorisedRunner

STEPS, REPEATS = 60, 40


def main(workload: str, algorithm: str, precision: str = "tf32") -> None:
    federated = federation(
        WORKLOADS[workload], algorithm, "compiled", Size(precision=called(precision)), "cuda"
    )
    started = time.perf_counter()
    list(federated.run(1))
    torch.cuda.synchronize()
    print(f"first round, compilation included: {time.perf_counter() - started:.1f} s")
    assert isinstance(federated.runner, VectorisedRunner)
    (program,) = federated.runner._programs.values()

    def steps(count: int) -> None:
        program.state.at.zero_()
        program.run(count)
        torch.cuda.synchronize()

    steps(STEPS)
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        steps(STEPS)
        times.append(1000 * (time.perf_counter() - started) / STEPS)
    print(
        f"{median(times):.3f} ms a step ({min(times):.3f} to {max(times):.3f} in {REPEATS} times "
        f"{STEPS} of them)"
    )
    print(f"{torch.cuda.max_memory_allocated() / 2**30:.2f} GiB at most")
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        steps(10)
    kernels = sorted(seen.key_averages(), key=lambda kernel: -kernel.device_time_total)
    for kernel in kernels[:40]:
        print(
            f"{kernel.device_time_total / 10:8.1f} us {kernel.count / 10:5.1f}x {kernel.key[:100]}"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
