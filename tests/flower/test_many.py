"""Many clients: fifty SuperNodes, and sixty virtual ones of Flower's simulation engine; long: make
federation-test.
"""

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fedmix import Experiment
from fedmix.experiment.presets import experiment as preset
from fedmix.flower import Task
from fedmix.flower.app import write_app
from fedmix.flower.family import descendants
from fedmix.flower.local import STARTING
from fedmix.flower.processes import Link
from fedmix.flower.server import folder_of
from fedmix.runs.run import Run
from tests.flower.processes import EXAMPLE, PATIENCE, Federated, largest_difference
from tests.miniature import write_mirror

pytestmark = pytest.mark.federation
MANY = 50


def resident(link: Link, name: str) -> int:
    """Bytes of memory of the SuperLink, or of what it started, by a part of the command."""
    superlink = link.processes["superlink"].pid
    total = 0
    for pid in [superlink, *descendants(superlink)]:
        with contextlib.suppress(OSError):
            if name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf(
                    "SC_PAGESIZE"
                )
    return total


def test_fifty_nodes_for_ten_rounds(tmp_path: Path) -> None:
    with Link(tmp_path / "link", env={"OMP_NUM_THREADS": "1"}) as link:
        federation = Federated(
            tmp_path,
            link,
            rounds=10,
            **{"training.clients_per_round": 5, "training.epochs": 1, "exchange.m": 5},
        )
        with np.load(federation.data / "test.npz") as some:
            x, y = some["x"], some["y"]
        for client in range(MANY):
            rows = slice(client, client + 20)
            np.savez(federation.data / f"client-{client}.npz", x=x[rows], y=y[rows])
            federation.node(client)
            link.wait_for_nodes(STARTING - 1)
        federation.run(clients=MANY, join_timeout=2 * PATIENCE, timeout=2 * PATIENCE, at_once=6)
        memory, told = [], 0
        while link.processes["run"].poll() is None:
            if len(federation.rounds()) > told:
                told = len(federation.rounds())
                memory.append(
                    (resident(link, "flwr-serverapp"), resident(link, "flower-superlink"))
                )
            time.sleep(0.2)
        federation.finish()
    rounds = federation.rounds()
    app, superlink = (np.array(column) / 2**20 for column in zip(*memory, strict=True))
    pace = 60 * 9 / (rounds[-1]["seconds"] - rounds[0]["seconds"])
    print(
        f"{pace:.2f} rounds a minute; server app {app.round()} MiB, SuperLink {superlink.round()} "
        "MiB",
        file=sys.stderr,
    )
    assert [line["replied"] for line in rounds] == [5] * 10
    assert rounds[-1]["clients"] == MANY
    assert app[1:].max() < 1.1 * app[1]
    assert superlink[1:].max() < 1.3 * superlink[1]


@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="needs ray: pip install 'flwr[simulation]==1.41.0'",
)
def test_sixty_virtual_clients_in_flowers_simulation(tmp_path: Path) -> None:
    """In a network with nothing but loopback, since Ray listens on the machine's own address."""
    if (
        shutil.which("unshare") is None
        or subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("this machine lets nobody make a network namespace")
    here = [
        sys.executable,
        "-c",
        f"from tests.flower.test_many import simulate; simulate({str(tmp_path)!r})",
    ]
    inside = ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *here]
    subprocess.run(inside, cwd=EXAMPLE.parents[1], timeout=PATIENCE, check=True)
    task = Task.of(virtual())
    folder = folder_of(task, tmp_path / "runs")
    reference = virtual().federation(tmp_path / "mirror")
    list(reference.run(3))
    state, _ = Run(task.experiment, folder).checkpoint.load() or ({}, {})
    ours = {n.removeprefix("params."): t for n, t in state.items() if n.startswith("params.")}
    assert largest_difference(ours, reference.params) <= 1e-5
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [(line["clients"], line["replied"]) for line in lines] == [(60, 15)] * 3
    print(lines[-1], file=sys.stderr)


def virtual() -> Experiment:
    """The paper's CIFAR-10 setting with a small network: 60 clients, 15 a round."""
    small = {"model.widths": [4, 4, 8, 8, 8, 8], "model.hidden": 16, "model.dropout": 0.0}
    return preset("cifar10", "fedmix").with_settings(
        {"rounds": 3, "engine.name": "sequential", "evaluate_every": 1, **small}
    )


def simulate(folder: str) -> None:
    """Run it, from inside that network."""
    root = Path(folder)
    mirror = write_mirror(root / "mirror", "cifar10")
    config = {
        "clients": 60,
        "out": str(root / "runs"),
        "data": str(mirror),
        "join-timeout": PATIENCE,
        "timeout": PATIENCE,
    }
    app = write_app(root / "app", virtual(), config)
    env = {
        "OMP_NUM_THREADS": "1",
        "FEDMIX_CACHE": str(root / "cache"),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    os.environ["FEDMIX_CACHE"] = env["FEDMIX_CACHE"]
    virtual().build_data(mirror)  # decoded once, before sixty ask for it
    with Link(root / "link", env=env, options=["--simulation"]) as link:
        link.run(app, "--federation-config", "num-supernodes=60").wait(PATIENCE)
