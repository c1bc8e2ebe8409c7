"""A SuperLink and its SuperNodes as real processes of this machine, started, watched and cleaned up."""

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import tomli_w

from fedmix.errors import BadInput, FedmixError
from fedmix.flower.keys import Keys

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "PYTHONUNBUFFERED": "1",
}
START_SECONDS = 60.0
STOP_SECONDS = 15.0
NAME = "fedmix"


class Link:
    """Processes on loopback, each in a process group of its own, with a log in `folder`; all end with the `with` block.

    With `keys`, everything runs over TLS and nodes have to prove who they are.
    """

    def __init__(self, folder: Path, keys: Keys | None = None, env: Mapping[str, str] | None = None) -> None:
        self.folder, self.keys, self.port = folder.resolve(), keys, free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        binaries = str(Path(sys.executable).parent)
        path = os.pathsep.join([binaries, os.environ.get("PATH", "")])
        self.env = {**os.environ, **QUIET, "PATH": path, "FLWR_HOME": str(self.folder / "home"), **(env or {})}

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> "Link":
        home = self.folder / "home"
        home.mkdir(parents=True, exist_ok=True)
        security = {"root-certificates": str(self.keys.ca)} if self.keys else {"insecure": True}
        config = {"superlink": {"default": NAME, NAME: {"address": self.address, **security}}}
        (home / "config.toml").write_text(tomli_w.dumps(config))
        try:
            self.start_superlink()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def start_superlink(self) -> None:
        """Start the SuperLink and wait until it listens. Its database keeps nodes' ids over a restart."""
        security = ["--insecure"]
        if self.keys:
            keys = self.keys
            security = [
                "--ssl-ca-certfile",
                str(keys.ca),
                "--ssl-certfile",
                str(keys.certificate),
                "--ssl-keyfile",
                str(keys.key),
            ]
            security += ["--enable-supernode-auth"]
        database = ["--database", str(self.folder / "state.db"), "--disable-runtime-dependency-installation"]
        self.start("superlink", ["flower-superlink", "--port", str(self.port), *database, *security])
        self.wait_for(self.port, "superlink")

    def start_node(self, client: int, *, superlink: str | None = None, key: Path | None = None, **config: Any) -> None:
        """Start the SuperNode of a client; `config` is its node configuration."""
        security = ["--insecure"]
        if self.keys:
            security = ["--root-certificates", str(self.keys.ca)]
            security += ["--auth-supernode-private-key", str(key or self.keys.node(client))]
        settings = {"partition-id": client, **config}
        node_config = " ".join(f"{k.replace('_', '-')}={_toml(v)}" for k, v in settings.items())
        where = ["--superlink", superlink or self.address, "--port", str(free_port()), "--node-config", node_config]
        self.start(f"node-{client}", ["flower-supernode", *security, *where])

    def register(self, client: int) -> None:
        """Let a client's key in."""
        assert self.keys is not None
        said = self.command("supernode", "register", str(self.keys.node(client).with_suffix(".pub")), NAME)
        if said.returncode:
            raise FedmixError(f"the SuperLink did not take the key of client {client}: {said.stdout or said.stderr}")

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a `flwr` command to its end."""
        return subprocess.run(["flwr", *arguments], env=self.env, capture_output=True, text=True, timeout=120, check=False)

    def run(self, app: Path) -> subprocess.Popen[bytes]:
        """Submit an app; the process ends when its run does."""
        return self.start("run", ["flwr", "run", str(app), NAME, "--stream"])

    def start(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a process; what it says goes to its log."""
        with (self.folder / f"{name}.log").open("ab") as log:
            log.write(f"$ {shlex.join(command)}\n".encode())
            log.flush()
            self.processes[name] = subprocess.Popen(
                command, env=self.env, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        return self.processes[name]

    def wait_for(self, port: int, name: str) -> None:
        """Wait until a process listens."""
        deadline = time.monotonic() + START_SECONDS
        while not _listens(port):
            if self.processes[name].poll() is not None or time.monotonic() > deadline:
                raise FedmixError(f"the {name} did not start; its log is {self.folder / (name + '.log')}")
            time.sleep(0.1)

    def kill(self, name: str) -> None:
        """SIGKILL a process and its children."""
        _signal(self.processes[name], signal.SIGKILL)
        self.processes.pop(name).wait()

    def stop(self) -> None:
        """End everything that was started: nodes first, then the SuperLink; by force where asking is not enough."""
        order = sorted(self.processes, key=lambda name: name == "superlink")
        for name in order:
            _signal(self.processes[name], signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        for name in order:
            process = self.processes.pop(name)
            while _alive(process.pid) and time.monotonic() < deadline:
                process.poll()
                time.sleep(0.05)
            _signal(process, signal.SIGKILL)
            process.wait()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _toml(value: Any) -> str:
    text = tomli_w.dumps({"v": value}).strip()
    if "\n" in text:
        raise BadInput(f"{value!r:.80} cannot be a value of a node's configuration; use a number or a short text")
    return text.removeprefix("v = ")
