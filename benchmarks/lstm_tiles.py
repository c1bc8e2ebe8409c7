"""Times the LSTM kernels over tile sizes on this GPU; kernels/lstm_triton.py uses the best."""

from collections.abc import Callable
from itertools import product
from typing import Any

import torch
import triton

from fedmix.kernels import lstm_triton as kernels

CLIENTS, BATCH, TIME, HIDDEN = 15, 10, 80, 256
TILES: list[tuple[str, dict[str, Any]]] = [
    ("tf32", {}),
    ("tf32", {"num_warps": 4}),
    ("tf32", {"BN": 16}),
    ("tf32", {"BN": 16, "num_warps": 4}),
    ("tf32", {"CHUNK": 64, "STAY": False}),
    ("bf16", {}),
    ("bf16", {"BN": 64}),
    ("float32", {}),
    ("float32", {"CHUNK": 32}),
    ("float32", {"PRECISION": "tf32x3"}),
]


def call(which: str, how: str, tile: dict[str, Any], pairs: int) -> Callable[[], object]:
    """Return a call of one kernel over a sequence."""
    shape = (CLIENTS, pairs, BATCH, TIME)
    p, w = (
        torch.randn(*shape, 4 * HIDDEN, device="cuda"),
        torch.randn(CLIENTS, 4 * HIDDEN, HIDDEN, device="cuda") / 16,
    )
    if which == "forward":
        return lambda: kernels.lstm(p, w, how, **tile)
    h, c = torch.randn(*shape, HIDDEN, device="cuda"), torch.randn(*shape, HIDDEN, device="cuda")
    return lambda: kernels.lstm_backward(h, p, c, w, how, **tile)


if __name__ == "__main__":
    for which, (how, tile) in product(("forward", "backward"), TILES):
        try:
            alone, pair = (
                triton.testing.do_bench_cudagraph(call(which, how, tile, pairs), rep=20)
                / TIME
                * 1e3
                for pairs in (1, 2)
            )
        except Exception as error:  # a tile that does not fit; the others can be timed
            print(which, how, tile, type(error).__name__, str(error)[:80])
            continue
        print(
            f"{which:8} {how} {tile}: {alone:.1f} us a step alone, {pair:.1f} with a derivative",
            flush=True,
        )
