"""Time the LSTM kernels over tile sizes on this GPU; the best of these are in kernels/lstm_triton.py."""

import multiprocessing

import torch
import triton

from fedmix.kernels import lstm_triton as kernels

CLIENTS, BATCH, TIME, HIDDEN = 15, 10, 80, 256
FORWARD = [
    (16, 64, 4, 2), (16, 128, 4, 2), (32, 64, 4, 3), (32, 128, 4, 2), (32, 128, 8, 2), (32, 256, 8, 1), (64, 64, 4, 3),
]  # fmt: skip
BACKWARD = [
    (16, 64, 4, 3), (16, 128, 4, 3), (16, 256, 4, 3), (32, 64, 4, 3), (32, 128, 4, 3), (32, 256, 8, 3), (64, 128, 4, 3),
]  # fmt: skip


def call(which: str, size: tuple[int, ...], pairs: int, steps: int) -> object:
    """Run one kernel over a sequence."""
    shape = (CLIENTS, pairs, BATCH, steps)
    p, w = torch.randn(*shape, 4 * HIDDEN, device="cuda"), torch.randn(CLIENTS, 4 * HIDDEN, HIDDEN, device="cuda") / 16
    tile = dict(zip(("BN", "BK", "num_warps", "num_stages"), size, strict=True))
    if which == "forward":
        return lambda: kernels.lstm(p, w, "tf32", **tile)
    h, c = torch.randn(*shape, HIDDEN, device="cuda"), torch.randn(*shape, HIDDEN, device="cuda")
    return lambda: kernels.lstm_backward(h, p, c, w, "tf32", **tile)


def compile_one(which: str, size: tuple[int, ...]) -> None:
    try:
        for pairs in (1, 2):
            call(which, size, pairs, TIME)()
    except Exception as error:  # a tile that does not fit; the others can be timed
        print(which, size, type(error).__name__, str(error)[:80])


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    cases = [("forward", s) for s in FORWARD] + [("backward", s) for s in BACKWARD]
    workers = [context.Process(target=compile_one, args=case) for case in cases]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for which, size in cases:
        try:
            times = [triton.testing.do_bench_cudagraph(call(which, size, pairs, TIME), rep=20) / TIME * 1e3 for pairs in (1, 2)]
        except Exception as error:  # as above
            print(which, size, type(error).__name__)
            continue
        print(
            f"{which:8} BN, BK, warps, stages {size}: {times[0]:.1f} us a step alone, {times[1]:.1f} with a derivative",
            flush=True,
        )
