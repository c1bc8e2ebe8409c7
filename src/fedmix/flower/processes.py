"""Start, watch and stop a SuperLink and its SuperNodes as processes of this machine."""

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import tomli_w

from fedmix.core.errors import BadInput, FedmixError
from fedmix.core.signals import heard
from fedmix.flower.family import alive, command_line, descendants, send
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
ENDING = (signal.SIGTERM, signal.SIGHUP)  # besides SIGINT


class Link:
    """A SuperLink and its nodes on loopback, in a `with` block that stops them all at its end.

    Each process has a process group of its own, and a log in `folder`.

    Args:
        folder: Folder of logs, database and Flower's configuration.
        keys: With keys, all connections use TLS and nodes have to authenticate.
        env: Further environment variables.
        options: Further options of the SuperLink.
    """

    def __init__(
        self,
        folder: Path,
        keys: Keys | None = None,
        env: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self.folder, self.keys, self.options = folder.resolve(), keys, options
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.held: list[socket.socket] = []
        self.port = self.hold_port()
        binaries = str(Path(sys.executable).parent)
        path = os.pathsep.join([binaries, os.environ.get("PATH", "")])
        self.env = {
            **os.environ,
            **QUIET,
            "PATH": path,
            "FLWR_HOME": str(self.folder / "home"),
            **(env or {}),
        }

    @property
    def address(self) -> str:
        """Host and port of the SuperLink."""
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start_superlink(self) -> None:
        """Start the SuperLink and wait until it listens.

        Its database keeps the ids of nodes over a restart. Raises FedmixError if it does not start.
        """
        security = ["--insecure"]
        if self.keys:
            files = {
                "ca-certfile": self.keys.ca,
                "certfile": self.keys.certificate,
                "keyfile": self.keys.key,
            }
            security = [
                "--enable-supernode-auth",
                *[f"--ssl-{name}={path}" for name, path in files.items()],
            ]
        database = [
            "--database",
            str(self.folder / "state.db"),
            "--disable-runtime-dependency-installation",
        ]
        self.start(
            "superlink",
            ["flower-superlink", "--port", str(self.port), *database, *security, *self.options],
        )
        self.wait_for(self.port, "superlink")

    def start_node(
        self,
        client: int,
        *,
        superlink: str | None = None,
        within: Sequence[str] = (),
        **config: Any,
    ) -> None:
        """Start the SuperNode of a client.

        Args:
            client: Number of the client.
            superlink: Address to connect to, if not that of this SuperLink.
            within: A command to run the node under.
            config: Further node configuration.
        """
        security = ["--insecure"]
        if self.keys:
            security = ["--root-certificates", str(self.keys.ca)]
            security += ["--auth-supernode-private-key", str(self.keys.node(client))]
        settings = _pairs({"partition-id": client, **config})
        where = [
            "--superlink",
            superlink or self.address,
            "--port",
            str(self.hold_port()),
            "--node-config",
            settings,
        ]
        self.start(f"node-{client}", [*within, "flower-supernode", *security, *where])

    def register(self, client: int) -> None:
        """Register a client's key with the SuperLink; raise FedmixError if it is not accepted."""
        assert self.keys is not None
        said = self.command(
            "supernode", "register", str(self.keys.node(client).with_suffix(".pub")), NAME
        )
        if said.returncode:
            raise FedmixError(
                f"the SuperLink did not take the key of client {client}: "
                f"{said.stdout or said.stderr}"
            )

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a `flwr` command, and wait for it."""
        return subprocess.run(
            ["flwr", *arguments],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def run(self, app: Path, *options: str, **config: Any) -> subprocess.Popen[bytes]:
        """Submit an app with `config` over its run configuration; the process ends with the run.

        Waits for the nodes first: `flwr run` gives up on a SuperLink that is busy with them.
        """
        self.wait_for_nodes()
        more = ["--run-config", _pairs(config)] if config else []
        return self.start("run", ["flwr", "run", str(app), NAME, "--stream", *more, *options])

    def start(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a process whose output goes to its log."""
        with self.log(name).open("ab") as log:
            log.write(f"$ {shlex.join(command)}\n".encode())
            log.flush()
            self.processes[name] = subprocess.Popen(
                command,
                env=self.env,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self.processes[name]

    def log(self, name: str) -> Path:
        """Path of the log of a process."""
        return self.folder / f"{name}.log"

    def wait_for(self, port: int, name: str) -> None:
        """Wait until a process listens; raise FedmixError if it ends or takes too long."""
        deadline = time.monotonic() + START_SECONDS
        while not _listens(port):
            if self.processes[name].poll() is not None or time.monotonic() > deadline:
                raise FedmixError(f"the {name} did not start; its log is {self.log(name)}")
            time.sleep(0.1)

    def wait_for_nodes(self, most: int = 0) -> None:
        """Wait until all nodes but at most `most` have joined.

        Raises FedmixError if a process ends, or no node joins for too long.
        """
        before, deadline = list[str](), 0.0
        while len(missing := [name for name in self.processes if not self.joined(name)]) > most:
            self.check()
            if missing != before:
                before, deadline = missing, time.monotonic() + START_SECONDS
            if time.monotonic() > deadline:
                raise FedmixError(
                    f"{missing[0]} did not join within {START_SECONDS:g} s; its log is "
                    f"{self.log(missing[0])}"
                )
            time.sleep(0.1)

    def joined(self, name: str) -> bool:
        """Whether a process is no node, or a node that says that it has joined."""
        return not name.startswith("node-") or b"SuperNode ID" in self.log(name).read_bytes()

    def check(self) -> None:
        """Raise FedmixError if the SuperLink or a node has ended by itself."""
        for _, why in self.ended():
            raise FedmixError(why)

    def ended(self) -> Iterator[tuple[str, str]]:
        """Yield name and end of the SuperLink and the nodes that have ended by themselves."""
        for name, process in self.processes.items():
            if name != "run" and process.poll() is not None:
                yield (
                    name,
                    f"{name} ended (exit code {process.returncode}); its log is {self.log(name)}",
                )

    def serves(self) -> bool:
        """Whether the SuperLink runs a server app; never where there is no /proc."""
        return any(
            b"flwr-serverapp" in command_line(pid)
            for pid in descendants(self.processes["superlink"].pid)
        )

    def hold_port(self) -> int:
        """Reserve a port on loopback until `stop`; Flower needs its number and does not take 0.

        Linux assigns a bound port to nobody else, and still lets a server listen on it by its
        number if both sockets set SO_REUSEADDR, as servers do. Other systems do not, so there the
        port is only free at the moment.
        """
        held = socket.socket()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port = int(held.getsockname()[1])
        if sys.platform == "linux":
            self.held.append(held)
        else:
            held.close()
        return port

    def kill(self, name: str) -> None:
        """Kill a process and all its descendants with SIGKILL."""
        process = self.processes.pop(name)
        for pid in [*descendants(process.pid), process.pid]:
            send(pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """Stop all processes, nodes before the SuperLink; kill those that do not end in time."""
        with _undisturbed():
            self._stop()

    def _stop(self) -> None:
        order = sorted(self.processes, key=lambda name: name == "superlink")
        family = {
            name: [*descendants(self.processes[name].pid), self.processes[name].pid]
            for name in order
        }
        for name in order:
            send(self.processes[name].pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        for name in order:
            process = self.processes.pop(name)
            while any(alive(pid) for pid in family[name]) and time.monotonic() < deadline:
                process.poll()
                time.sleep(0.05)
            for pid in family[name]:
                send(pid, signal.SIGKILL)
            process.wait()
        while self.held:
            self.held.pop().close()


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Ignore further signals to end, so that no process is left behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with heard((signal.SIGINT, *ENDING), lambda: None):
        yield


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _pairs(config: Mapping[str, Any]) -> str:
    """Format a configuration for Flower's command line: KEY=VALUE, each value as in TOML."""
    return " ".join(f"{key.replace('_', '-')}={_toml(value)}" for key, value in config.items())


def _toml(value: Any) -> str:
    text = tomli_w.dumps({"v": value}).strip()
    if "\n" in text:
        raise BadInput(
            f"{value!r:.80} cannot be a value of a configuration; use a number or a short text"
        )
    return text.removeprefix("v = ")
