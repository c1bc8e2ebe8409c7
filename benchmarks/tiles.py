"""Times the convolution kernels over tile sizes on this GPU, for the layers of the paper's VGG.

    python benchmarks/tiles.py OUT.json [BATCH [tf32 | bf16]]

Several processes compile first; timing then runs alone. The choice of `kernels/conv_triton.py` is
printed beside the best tile.
"""

import itertools
import json
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

from fedmix.kernels import conv_triton as kernels
from fedmix.kernels.sizes import copied, parts

CLIENTS = 15
LAYERS = {
    "conv1": (32, 3, 32), "conv2": (32, 32, 64), "conv3": (16, 64, 128),
    "conv4": (16, 128, 128), "conv5": (8, 128, 256), "conv6": (8, 256, 256),
}  # fmt: skip


def cases(
    batch: int, how: str
) -> Iterator[tuple[str, Callable[..., Tensor], list[dict[str, int]], float]]:
    """Yield name, call, tiles to try and GFLOP of every product of a step."""
    low = how == "bf16"
    form = {"device": "cuda", "dtype": torch.bfloat16 if low else torch.float32}
    for name, (size, C, O) in LAYERS.items():  # noqa: E741 - output channels
        x = torch.randn(CLIENTS, batch, size, size, C, **form)
        g = torch.randn(CLIENTS, batch, size, size, O, **form)
        w = torch.randn(CLIENTS, O, 3, 3, C, **form)
        flop = 2e-9 * CLIENTS * batch * size**2 * 9 * C * O
        yield (
            f"{name} forward",
            lambda x=x, w=w, **t: kernels.conv(x, w, None, 0, 1, how, **t),
            list(_tiles(O, low)),
            flop,
        )
        if name != "conv1":
            yield (
                f"{name} input",
                lambda g=g, w=w, **t: kernels.conv_input(g, w, 1, how, **t),
                list(_tiles(C, low)),
                flop,
            )
        cut = parts(batch * size**2, O, C, 9)
        tried = list(_weight_tiles(O, C) if copied(C, x.itemsize) else _as_is_tiles(O, C, low))
        yield (
            f"{name} weight",
            lambda g=g, x=x, n=cut, **t: kernels.conv_weight(g, x, 0, 1, n, how, **t)[0],
            tried,
            flop,
        )


def _tiles(outputs: int, low: bool) -> Iterator[dict[str, int]]:
    for BM, BN, BK in itertools.product(
        (64, 128, 256), (32, 64, 128, 256), (32, 64, 128) if low else (32, 64)
    ):
        for num_warps, num_stages in ((4, 3), (8, 3), (4, 4)):
            small, large = BM * BN < 64 * 64, BM * BN >= 128 * 128
            shared = (BM + BN) * BK * (2 if low else 4) * num_stages
            if (
                max(32, outputs) >= BN
                and shared <= 220_000
                and not (small and num_warps == 8)
                and not (large and num_warps == 4)
            ):
                yield {
                    "BM": BM,
                    "BN": BN,
                    "BK": BK,
                    "num_warps": num_warps,
                    "num_stages": num_stages,
                }


def _weight_tiles(outputs: int, channels: int) -> Iterator[dict[str, int]]:
    for BO, BC, BM, num_warps in itertools.product((64, 128), (64, 128), (32, 64), (4, 8)):
        if outputs >= BO and channels >= BC and (BO * BC < 128 * 128 or num_warps == 8):
            yield {"BO": BO, "BC": BC, "BM": BM, "num_warps": num_warps, "num_stages": 3}


def _as_is_tiles(outputs: int, channels: int, low: bool) -> Iterator[dict[str, int]]:
    for BO, BJ, BM in itertools.product(
        (32, 64, 128) if low else (32, 64), (32, 64, 128), (32, 64, 128) if low else (32, 64)
    ):
        if outputs >= BO and max(32, 9 * channels) >= BJ:
            for num_stages in (3, 4) if low else (3,):
                yield {
                    "BO": BO,
                    "BJ": BJ,
                    "BM": BM,
                    "num_warps": 8 if BO * BJ > 128 * 64 else 4,
                    "num_stages": num_stages,
                }


def compile_share(batch: int, how: str, share: int, of: int) -> None:
    for number, (_, call, tiles, _) in enumerate(cases(batch, how)):
        for tile in tiles[(share + number) % of :: of]:
            try:
                call(**tile)
            except Exception:  # a tile that does not fit; the timing says so
                continue


def main(out: str, batch: int, how: str, workers: int) -> None:
    context = multiprocessing.get_context("spawn")
    helpers = [
        context.Process(target=compile_share, args=(batch, how, i, workers)) for i in range(workers)
    ]
    for helper in helpers:
        helper.start()
    for helper in helpers:
        helper.join()
    found: dict[str, Any] = {}
    total = 0.0
    for name, call, tiles, flop in cases(batch, how):
        times = []
        for tile in tiles:
            try:
                ms = triton.testing.do_bench(
                    lambda c=call, t=tile: c(**t), warmup=3, rep=12, return_mode="median"
                )
            except Exception as error:  # a tile that does not fit; the others can be timed
                print(name, tile, type(error).__name__)
                continue
            times.append((ms, tile))
        times.sort(key=lambda pair: pair[0])
        total += times[0][0]
        chosen = triton.testing.do_bench(call, warmup=3, rep=12, return_mode="median")
        found[name] = {"chosen_ms": chosen, "best": times[:6], "gflop": flop}
        print(
            f"{name:15} chosen {chosen:.3f} best {times[0][0]:.3f} ms {flop / times[0][0]:.0f} "
            f"TFLOP/s {times[0][1]}",
            flush=True,
        )
    print(f"all, best tiles: {total:.3f} ms")
    Path(out).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    out, batch, how = (*sys.argv[1:], *("20", "tf32")[len(sys.argv) - 2 :])
    main(out, int(batch), how, 14)
