"""Starts the processes of a launch by their variables, as Slurm's `srun` and others do."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]


def environment(**more: str) -> dict[str, str]:
    """One thread for each process, and the modules of the tests."""
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"} | more


def start(count: int, command: Sequence[object], **more: str) -> list[subprocess.Popen[str]]:
    """Start `count` processes of a Python command that find each other on a free port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    at = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port} | more
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
    said = [process.communicate(timeout=300) for process in processes]
    return [(p.returncode, out, err) for p, (out, err) in zip(processes, said, strict=True)]
