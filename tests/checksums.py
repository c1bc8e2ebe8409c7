"""Checksums of weights, metrics and traffic of every algorithm on every engine, and of every model.

A change of structure changes no bit:

    python -m tests.checksums write before.json    # before the change
    python -m tests.checksums compare before.json  # after it

They depend on the machine and on PyTorch's version, so no such file is part of the repository.
"""

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from fedmix.core.registry import ALGORITHMS
from fedmix.experiment.presets import experiment
from fedmix.experiment.spec import Experiment
from tests.miniature import write_mirror

COMBINED = ("fedmix+prox", "localmix+prox", "hidden-fedmix", "hidden-naivemix+prox")
ENGINES = ("sequential", "vectorised")
MODELS: dict[str, dict[str, Any]] = {
    "cifar10": {"data.clients": 20},
    "cifar100": {"data.clients": 5, "data.local_share": 0.2},
    "femnist": {"data.clients": 8},
    "shakespeare": {"data.clients": 4, "data.cap": 100, "training.batch_size": 20},
}


def checksum(spec: Experiment, root: Path | None = None) -> str:
    federation = spec.federation(root)
    rounds = [(r.round, r.local_loss, r.metrics) for r in federation.run(2)]
    digest = hashlib.sha256(repr((rounds, federation.traffic)).encode())
    for name, tensor in sorted(federation.params.items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()[:16]


def cases() -> Iterator[tuple[str, Experiment, str | None]]:
    for algorithm in (*ALGORITHMS, *COMBINED):
        for engine in ENGINES:
            changes = {"training.epochs": 1, "engine.name": engine}
            yield (
                f"{algorithm} {engine}",
                experiment("digits", algorithm).with_settings(changes),
                None,
            )
    compiled = experiment("digits", "fedmix").with_settings(
        {"training.epochs": 1, "engine.compile": True}
    )
    yield "fedmix compiled", compiled, None
    released: dict[str, Any] = {
        "m": 5,
        "noise": 0.1,
        "clip": 4.0,
        "average": 2,
        "cutoff": 3,
        "exclude_own": True,
    }
    means = {
        "training.epochs": 1,
        **{f"exchange.{name}": value for name, value in released.items()},
    }
    yield "fedmix with noisy means", experiment("digits", "fedmix").with_settings(means), None
    for name, small in MODELS.items():
        changes = {
            "training.clients_per_round": 2,
            "training.epochs": 1,
            "training.lr": 0.001,
            "engine.compile": False,
        }
        yield name, experiment(name).with_settings(changes | small), name
    values = {
        "data": {"name": "diabetes"},
        "model": {"name": "mlp"},
        "objective": {"name": "fedmix", "lam": 0.1},
    }
    yield "diabetes", Experiment.of(values | {"training": {"clients_per_round": 3}}), None


def all_checksums() -> dict[str, str]:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FEDMIX_CACHE"] = f"{folder}/cache"
        for name, spec, mirrored in cases():
            if mirrored:
                write_mirror(Path(folder) / mirrored, mirrored)
            found[name] = checksum(spec, Path(folder) / mirrored if mirrored else None)
            print(found[name], name, flush=True)
    return found


def main(command: str, file: str) -> int:
    torch.set_num_threads(1)
    found = all_checksums()
    if command == "write":
        Path(file).write_text(json.dumps(found, indent=1) + "\n")
        return 0
    before = json.loads(Path(file).read_text())
    differ = sorted(
        name for name in before.keys() | found.keys() if before.get(name) != found.get(name)
    )
    print(
        f"{len(found)} checksums, of which {len(differ)} "
        f"differ{': ' if differ else ''}{', '.join(differ)}"
    )
    return int(bool(differ))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
