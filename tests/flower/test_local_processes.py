"""Ports that are kept for the processes of a federation, and processes that end too early."""

import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fedmix import FedmixError
from fedmix.cli import federation
from fedmix.flower.processes import Link

LISTEN = "import http.server; http.server.HTTPServer(('127.0.0.1', {port}), None).serve_forever()"
END = "raise SystemExit(3)"
END_LATER = (
    "import pathlib, time\nprint('SuperNode ID: 7')\n"
    "while not pathlib.Path('../../metrics.jsonl').is_file(): time.sleep(0.1)\ntime.sleep(1); "
    + END
)
TRAIN = (
    "import pathlib, time; "
    "pathlib.Path('../../metrics.jsonl').write_text('{\"round\": 1, \"loss\": 0.5}\\n'); "
    "time.sleep(3)"
)
WAIT = "import time; print('SuperNode ID: 7'); time.sleep(20)"


@pytest.fixture
def link(tmp_path: Path) -> Iterator[Link]:
    link = Link(tmp_path)
    yield link
    link.stop()


@pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere no server could listen on a port that is held"
)
def test_a_port_is_nobody_elses_before_its_process_listens(link: Link) -> None:
    for port in (link.port, link.hold_port()):
        with socket.socket() as other, pytest.raises(OSError, match="Address already in use"):
            other.bind(("127.0.0.1", port))
    process = link.start("superlink", [sys.executable, "-c", LISTEN.format(port=link.port)])
    link.wait_for(link.port, "superlink")
    assert process.poll() is None


def test_a_process_that_has_ended_is_named_with_its_log(link: Link) -> None:
    link.start("node-0", [sys.executable, "-c", WAIT])
    link.start("run", [sys.executable, "-c", END]).wait()
    link.check()
    link.start("node-1", [sys.executable, "-c", END]).wait()
    with pytest.raises(FedmixError) as told:
        link.check()
    assert str(told.value) == f"node-1 ended (exit code 3); its log is {link.folder / 'node-1.log'}"


def test_a_run_waits_for_nodes_that_start(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedmix.flower.processes.START_SECONDS", 0.5)
    for node in ("node-0", "node-1"):
        link.start(node, [sys.executable, "-c", WAIT])
    link.wait_for_nodes()
    link.start("node-2", [sys.executable, "-c", "import time; time.sleep(20)"])
    link.wait_for_nodes(1)
    with pytest.raises(FedmixError, match=r"^node-2 did not join within 0\.5 s; its log is "):
        link.wait_for_nodes()
    link.kill("node-2")
    link.start("node-2", [sys.executable, "-c", END])
    with pytest.raises(FedmixError, match=r"node-2 ended \(exit code 3\)"):
        link.wait_for_nodes()


@pytest.mark.parametrize(
    ("node", "run", "said"),
    [
        (END, WAIT, r"^node-1 ended \(exit code 3\); its log is .*node-1\.log$"),
        (END_LATER, TRAIN, "^the federation failed: its server ended after round 1"),
    ],
    ids=["before the first round", "after it"],
)
def test_only_a_federation_that_has_not_begun_ends_with_a_node(
    node: str, run: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Acted(Link):
        def start(self, name: str, _: Sequence[str]) -> subprocess.Popen[bytes]:
            parts = {"superlink": LISTEN.format(port=self.port), "node-1": node, "run": run}
            return super().start(name, [sys.executable, "-c", parts.get(name, WAIT)])

    monkeypatch.setattr("fedmix.flower.local.Link", Acted)
    with pytest.raises(FedmixError, match=said):
        federation.run("digits", nodes=5, rounds=2, out=tmp_path, quiet=True)
