"""Starts the processes of a launch by their variables, as Slurm's `srun` and others do."""

import os
import random
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
LONG = 900  # seconds for what takes some, on a machine that is busy with other tests
# below those that the system hands out, so that no other process gets it before the ranks meet
PORTS = range(20_000, 32_000)


def environment(**more: str) -> dict[str, str]:
    """One thread for each process, and the modules of the tests."""
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"} | more


def free_port() -> str:
    while True:
        port = random.choice(PORTS)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return str(port)


def start(count: int, command: Sequence[object], **more: str) -> list[subprocess.Popen[str]]:
    """Start `count` processes of a Python command that find each other on a free port."""
    at = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()} | more
    return [
        subprocess.Popen(
            [sys.executable, *map(str, command)], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=environment(RANK=str(rank), LOCAL_RANK=str(rank), **at),
        )
        for rank in range(count)
    ]  # fmt: skip


def ended(processes: Sequence[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Wait for all; return the exit code, output and errors of each."""
    said = [process.communicate(timeout=LONG) for process in processes]
    return [(p.returncode, out, err) for p, (out, err) in zip(processes, said, strict=True)]
