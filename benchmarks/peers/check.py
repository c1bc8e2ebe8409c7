"""Checks that all programs trained, and to the same weights.

Adds to each record the loss of its last weights, and the distance of its weights after one round.
Later, differences in rounding have grown.
"""

import json
import sys
from functools import cache
from pathlib import Path

import numpy as np
import torch
from in_torch import module, tensors, trained
from torch.nn import functional as F
from workload import WORKLOADS, Array, Workload

data = cache(tensors)


def loss(work: Workload, weights: list[Array]) -> float:
    """Mean cross entropy over the samples of the first ten clients."""
    net, (x, y) = module(work), data(work)
    with torch.no_grad():
        for parameter, array in zip(trained(net), weights, strict=True):
            parameter.copy_(torch.from_numpy(array))
        return sum(float(F.cross_entropy(net(x[k]), y[k])) for k in range(10)) / 10


def distance(work: Workload, weights: list[Array], plain: list[Array]) -> float:
    """‖w − w_plain‖ / ‖w_plain − w_initial‖: the distance relative to the plain loop's update."""
    apart = sum(float(((a - b) ** 2).sum()) for a, b in zip(weights, plain, strict=True))
    went = sum(float(((a - b) ** 2).sum()) for a, b in zip(plain, work.initial(), strict=True))
    return (apart / went) ** 0.5


def main(folder: Path) -> None:
    found = [(path, json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))]
    first, last = {}, {}
    for path, _ in found:
        arrays = list(np.load(path.with_suffix(".npz")).values())
        first[path], last[path] = arrays[: len(arrays) // 2], arrays[len(arrays) // 2 :]
    plain = {
        (r["workload"], r["algorithm"]): first[path]
        for path, r in reversed(found)
        if r["variant"] == "plain"
    }
    before = {name: loss(work, work.initial()) for name, work in WORKLOADS.items()}
    for path, record in found:
        work = WORKLOADS[record["workload"]]
        record |= {"loss_before": before[work.name], "loss": loss(work, last[path])}
        reference = plain.get((work.name, record["algorithm"]))
        if reference is not None:
            record["distance"] = distance(work, first[path], reference)
        path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
