"""Matrix products: how many operations a step has in them, and how fast this machine makes them."""

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from fedmix.bench.cases import Size, Workload, federation, settings
from fedmix.bench.machine import wait
from fedmix.core.devices import cores
from fedmix.kernels.precision import Precision, arithmetic

SIDE, PRODUCTS = 1024, 8  # of the matrices that are multiplied, and how often


def operations(workload: Workload, algorithm: str, size: Size) -> float:
    """Count the operations of a step of all clients in matrix products and convolutions.

    They are those of the reference engine with a batch of each client; two for each product.
    """
    _, training, _ = settings(workload, algorithm, size, "cpu")
    one = size._replace(clients=1, steps=1, ragged=False, precision="tf32")
    built = federation(workload, algorithm, "sequential", one, "cpu")
    with FlopCounterMode(display=False) as counted:
        built._train_round()
    return float(counted.get_total_flops()) * training.per_round(1)


def multiplying(device: torch.device, precision: Precision) -> float:
    """Return the operations in a second of a product of two matrices of 1,024 x 1,024.

    The fastest of some, on all cores. On a CPU PyTorch has two libraries for products, one of which
    may be far from what the machine can do; the other is reached by a convolution of 1x1.
    """
    threads = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(cores())
    kind = torch.bfloat16 if precision == "bf16" and device.type == "cuda" else torch.float32
    factor, best = torch.ones(SIDE, SIDE, device=device, dtype=kind), math.inf
    ways: list[Callable[[], Tensor]] = [lambda: factor @ factor]
    if device.type == "cpu":
        ways.append(lambda: F.conv2d(factor.view(1, SIDE, -1, 32), factor[..., None, None]))
    with torch.no_grad(), arithmetic(precision):
        for way in PRODUCTS * ways:
            wait(device)
            started = time.perf_counter()
            way()
            wait(device)
            best = min(best, time.perf_counter() - started)
    torch.set_num_threads(threads)
    return float(2 * SIDE**3 / best)
