"""Real processes on loopback over the example's app, a wire that counts and can be cut, and the
same run on one machine.
"""

import contextlib
import json
import runpy
import shutil
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from fedmix import Experiment, Federation
from fedmix.data import from_arrays
from fedmix.flower import Task
from fedmix.flower.processes import Link
from fedmix.flower.server import folder_of
from fedmix.runs.run import Run
from fedmix.training.engines import Sequential

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower"
CLIENTS = 4
PATIENCE = 900.0


class Federated:
    """The example's app over a SuperLink and its nodes, with data and runs in `folder`."""

    def __init__(self, folder: Path, link: Link, **settings: Any) -> None:
        self.folder, self.link, self.data = folder, link, folder / "data"
        self.app = Path(
            shutil.copytree(
                EXAMPLE, folder / "app", ignore=shutil.ignore_patterns("__pycache__", "*.md")
            )
        )
        runpy.run_path(str(EXAMPLE / "make_data.py"))["main"](self.data)
        self.experiment = Experiment.load(self.app / "experiment.toml").with_settings(settings)
        (self.app / "experiment.toml").write_text(self.experiment.toml())

    def wrap(self, part: str, module: ModuleType, name: str) -> None:
        """Put a part of the app into a call of a function, which goes along with the app in its
        module.
        """
        app, file = self.app / "app.py", Path(str(module.__file__))
        before, there, after = app.read_text().rpartition(part)
        assert there
        shutil.copy(file, self.app)
        app.write_text(f"{before}__import__('{file.stem}').{name}({part}){after}")

    @property
    def run_folder(self) -> Path:
        return folder_of(Task.of(self.experiment), self.folder / "runs")

    def node(self, client: int, **more: Any) -> None:
        self.link.start_node(client, **{"data": str(self.data), **more})

    def run(self, **config: Any) -> None:
        self.link.run(self.app, out=str(self.folder / "runs"), data=str(self.data), **config)

    def finish(self) -> dict[str, Any]:
        """Wait for the run's end; its summary."""
        self.link.processes["run"].wait(PATIENCE)
        return dict(json.loads((self.run_folder / "summary.json").read_text()))

    def rounds(self) -> list[dict[str, Any]]:
        path = self.run_folder / "metrics.jsonl"
        return (
            [json.loads(line) for line in path.read_text().split("\n")[:-1]]
            if path.is_file()
            else []
        )

    def wait_until(self, what: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not what():
            assert time.monotonic() < deadline, (
                f"waited in vain; the logs are in {self.link.folder}"
            )
            run = self.link.processes.get("run")
            assert run is None or run.poll() is None, (
                f"the run ended early; the logs are in {self.link.folder}"
            )
            time.sleep(0.2)

    def said(self) -> str:
        """The server's log."""
        path = self.run_folder / "federation.log"
        return path.read_text() if path.is_file() else ""

    def weights(self) -> dict[str, torch.Tensor]:
        state, _ = Run(self.experiment, self.run_folder).checkpoint.load() or ({}, {})
        return {n.removeprefix("params."): t for n, t in state.items() if n.startswith("params.")}

    def simulated(self, clients: int = CLIENTS) -> Federation:
        """The same experiment by the sequential engine, after its last round; with fewer clients,
        as if there were no others.
        """
        parts = [np.load(self.data / f"client-{k}.npz") for k in range(clients)]
        x, y = (np.concatenate([part[name] for part in parts]) for name in ("x", "y"))
        rows = np.split(np.arange(len(x)), np.cumsum([len(part["y"]) for part in parts])[:-1])
        test = np.load(self.data / "test.npz")
        data = from_arrays(x, y, rows, (test["x"], test["y"]), classes=10)
        agreed = Task.of(self.experiment)
        federation = Federation(
            agreed.module(data), data, agreed.objective,
            replace(agreed.training, clients_per_round=clients), exchange=agreed.exchange,
            engine=Sequential(), seed=self.experiment.seed,
        )  # fmt: skip
        list(federation.run(self.experiment.rounds))
        return federation


def largest_difference(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    assert set(ours) == set(theirs)
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)


class Wire:
    """Passes everything between nodes and a SuperLink, as slowly as asked for, counts the bytes,
    and keeps those that go up.
    """

    def __init__(self, port: int, host: str = "127.0.0.1", delay: float = 0.0) -> None:
        self.target, self.delay, self.up, self.down, self.cut = port, delay, 0, 0, False
        self.heard: list[bytes] = []
        self.listener = socket.create_server((host, 0), backlog=256)
        self.address = f"{host}:{self.listener.getsockname()[1]}"
        self.open: set[socket.socket] = set()
        self.threads = [threading.Thread(target=self._accept, daemon=True)]
        self.threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                node, _ = self.listener.accept()
            except OSError:  # closed
                return
            try:
                if self.cut:
                    raise ConnectionError
                link = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                node.close()
                continue
            for source, sink, way in ((node, link, "up"), (link, node, "down")):
                self.open.add(source)
                self.threads.append(
                    threading.Thread(target=self._pass, args=(source, sink, way), daemon=True)
                )
                self.threads[-1].start()

    def _pass(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(1 << 16):
                if self.cut:
                    break
                time.sleep(self.delay)
                setattr(self, way, getattr(self, way) + len(chunk))
                if way == "up":
                    self.heard.append(chunk)
                sink.sendall(chunk)
        _hang_up(sink)
        self.open.discard(source)
        source.close()

    def close(self) -> None:
        """End every connection."""
        self.cut = True
        _hang_up(self.listener)
        self.listener.close()
        for one in list(self.open):
            _hang_up(one)
        for thread in self.threads:
            thread.join(5)


def _hang_up(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
