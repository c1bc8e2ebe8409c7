"""What a step with `fedmix.functional` costs beside a plain one, on one core of a CPU.

    python benchmarks/functional_cost.py [--batch 32] [lenet vgg nn.LSTM]

Time is that of the processor, so that other programs hardly count; steps of all losses take turns.
Memory is the peak of what PyTorch's allocator gives and takes back.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from fedmix import models
from fedmix.bench.plain import PlainCharLSTM
from fedmix.data.shakespeare import CLASSES as LETTERS
from fedmix.functional import fedmix_loss, naivemix_loss

KINDS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "lenet": (models.lenet, (1, 28, 28), 62),
    "vgg": (models.vgg, (3, 32, 32), 10),
    "nn.LSTM": (lambda: PlainCharLSTM(hidden=64), (80, LETTERS), LETTERS),
}
REPEATS = 7
Step = Callable[[], None]


def steps(
    batch: int, make: Callable[[], nn.Module], shape: tuple[int, ...], classes: int
) -> dict[str, Step]:
    """A step of each loss, all with one network."""
    torch.manual_seed(0)
    net, x, y = make().train(), torch.rand(batch, *shape), torch.randint(classes, (batch,))
    means = torch.rand(1, *shape), torch.full((1, classes), 1 / classes)

    def step(loss: Callable[[], Tensor]) -> Step:
        def taken() -> None:
            net.zero_grad()
            loss().backward()  # type: ignore[no-untyped-call]

        return taken

    return {
        "plain": step(lambda: F.cross_entropy(net(x), y)),
        "naivemix": step(lambda: naivemix_loss(net, x, y, *means, 0.05)),
        "fedmix": step(lambda: fedmix_loss(net, x, y, *means, 0.05)),
        "fedmix, logits": step(lambda: fedmix_loss(net, x, y, *means, 0.05, expand="logits")),
    }


def peak(step: Step) -> float:
    """Most MiB above those at the start."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
    assert seen.profiler is not None
    assert seen.profiler.kineto_results is not None
    now = most = 0
    for event in sorted(seen.profiler.kineto_results.events(), key=lambda e: e.start_ns()):
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most / 2**20


def seconds(step: Step) -> float:
    started = time.process_time()
    step()
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("models", nargs="*", default=list(KINDS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| model | loss | time of a plain step | memory | memory, first step |")
    print("|---|---|--:|--:|--:|")
    for name in options.models:
        losses = steps(options.batch, *KINDS[name])
        first = {loss: peak(step) for loss, step in losses.items()}
        later = {loss: peak(step) for loss, step in losses.items()}
        taken: dict[str, list[float]] = {loss: [] for loss in losses}
        for _ in range(REPEATS):
            for loss, step in losses.items():
                taken[loss].append(seconds(step))
        time_of = {loss: statistics.median(times) for loss, times in taken.items()}
        for loss in losses:
            ratios = (
                of[loss] / plain["plain"]
                for of, plain in ((time_of, time_of), (later, later), (first, later))
            )
            print(f"| {name} | {loss} | {' | '.join(f'{ratio:.2f}' for ratio in ratios)} |")


if __name__ == "__main__":
    main()
