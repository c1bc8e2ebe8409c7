"""What goes wrong in real federations, as much of it as two of them can show in some minutes; the
rest is in test_faults.py.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fedmix.flower.processes import Link
from tests.flower import leaks, lies
from tests.flower.processes import CLIENTS, Federated, Wire

SECRET = "HIV_positive"


@pytest.fixture
def link(tmp_path: Path) -> Iterator[Link]:
    with Link(tmp_path / "link", env={"OMP_NUM_THREADS": "1"}) as link:
        yield link


def test_a_liar_a_killed_server_and_a_killed_node(tmp_path: Path, link: Link) -> None:
    """A node dies in the first round, the server after it; the run goes on from its checkpoint,
    without the node.
    """
    federation = Federated(tmp_path, link, rounds=2, **{"training.clients_per_round": 3})
    federation.wrap("client_app(task)", lies, "Lying")
    federation.node(0)
    federation.node(1, lies="one more, nan, shape")
    federation.node(2)
    three = {"clients": 3, "join_timeout": 300, "min_share": 0.3}
    federation.run(**three)
    federation.wait_until(lambda: "version 1 of the pool" in federation.said())
    link.kill("node-2")
    federation.wait_until((federation.run_folder / "checkpoint.safetensors").exists)
    link.kill("superlink")
    link.kill("run")
    [before] = federation.rounds()
    assert (before["asked"], before["replied"], before["rejected"]) == (3, 1, 2)
    assert "client 2 gives no reply: its node is gone" in federation.said()
    link.start_superlink()
    federation.run(**three, min_clients=2)
    federation.finish()
    first, second = federation.rounds()
    assert first == before
    # the liar is asked for means again
    assert (second["asked"], second["replied"], second["rejected"]) == (2, 1, 4)
    assert (second["pool_version"], second["means_up"]) == (1, first["means_up"])
    said = federation.said()
    for reason in ("'1.weight' hold NaN", "'1.weight' have shape (32, 10) instead of (10, 32)"):
        assert said.count(reason) == 1
    with np.load(federation.data / "client-1.npz") as arrays:
        n = len(arrays["y"])
    sent = f"it sent {n // 20 + 1} means and {n // 20 + 1} label vectors; {n} samples with M_k=20"
    assert said.count(f"{sent} make {n // 20}") == 2


def test_what_nodes_say_stays_with_them(tmp_path: Path, link: Link) -> None:
    """A secret in a node's configuration, environment, policy and errors, looked for in all that
    the server gets and writes.
    """
    federation = Federated(tmp_path, link, rounds=1)
    federation.wrap("load", leaks, "spoilt")
    policy = tmp_path / f"{SECRET}.toml"
    policy.write_text(f"{SECRET} = true\n")
    wire = Wire(link.port)
    federation.node(0, superlink=wire.address, fault="loud", secret=SECRET)
    federation.node(1, superlink=wire.address, fault="a class", secret=SECRET)
    federation.node(2, superlink=wire.address, policy=str(policy))
    link.env["FEDMIX_SECRET"] = SECRET
    federation.node(3, superlink=wire.address)
    del link.env["FEDMIX_SECRET"]
    logs = [link.log(f"node-{client}") for client in range(CLIENTS)]
    federation.run(min_clients=1, min_share=0.25, attempts=1)
    federation.finish()
    for log in logs:
        assert SECRET in log.read_text().partition("\n")[2]  # its first line is the command
    kept = [link.folder / "superlink.log", link.folder / "run.log", *link.folder.glob("state.db*")]
    kept += [path for path in federation.run_folder.rglob("*") if path.is_file()]
    assert len(kept) > 8
    assert [path.name for path in kept if SECRET.encode() in path.read_bytes()] == []
    wire.close()
    heard = b"".join(wire.heard)
    assert b"refused" in heard  # so it is plain
    assert SECRET.encode() not in heard
    said = federation.said()
    for told in ("its data cannot be loaded", "its policy cannot be read", "its app failed"):
        assert said.count(told) == 1
