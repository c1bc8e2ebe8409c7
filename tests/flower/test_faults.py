"""What goes wrong in real federations, one thing at a time; some minutes each: make
federation-test.
"""

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fedmix.flower.processes import Link
from tests.flower import lies
from tests.flower.processes import CLIENTS, Federated, Wire, largest_difference

pytestmark = pytest.mark.federation


@pytest.fixture
def link(tmp_path: Path) -> Iterator[Link]:
    with Link(tmp_path / "link", env={"OMP_NUM_THREADS": "1"}) as link:
        yield link


def test_a_killed_node_is_missed_in_its_round_and_takes_part_again(
    tmp_path: Path, link: Link
) -> None:
    federation = Federated(tmp_path, link, rounds=6)
    for client in range(CLIENTS):
        federation.node(client)
    federation.run()
    federation.wait_until(lambda: len(federation.rounds()) == 1)
    time.sleep(1)  # into the second round
    link.kill("node-3")
    federation.wait_until(lambda: len(federation.rounds()) == 2)
    assert federation.rounds()[1]["replied"] == 3
    federation.node(3)
    summary = federation.finish()
    rounds = federation.rounds()
    assert summary["rounds"] == len(rounds) == 6
    assert rounds[-1]["replied"] == 4
    assert rounds[-1]["pool_version"] == 1  # its means were there already
    assert "client 3 is gone" in federation.said()


def test_a_killed_server_goes_on_from_its_checkpoint_with_its_pool(
    tmp_path: Path, link: Link
) -> None:
    federation = Federated(tmp_path, link, rounds=4)
    for client in range(CLIENTS):
        federation.node(client)
    federation.run()
    federation.wait_until(lambda: len(federation.rounds()) == 2)
    link.kill("superlink")
    link.kill("run")
    before = federation.rounds()
    link.start_superlink()
    federation.run()
    summary = federation.finish()
    assert (summary["rounds"], summary["releases"]) == (4, 1)
    rounds = federation.rounds()
    assert rounds[: len(before)] == before
    assert rounds[-1]["pool_version"] == 1
    assert rounds[-1]["means_up"] == rounds[0]["means_up"]
    assert largest_difference(federation.weights(), federation.simulated().params) <= 1e-5


def test_nodes_that_lie_are_rejected_and_the_model_is_untouched(tmp_path: Path, link: Link) -> None:
    """Two of four nodes lie about their means, and in every round in another way about their
    update.
    """
    federation = Federated(tmp_path, link, rounds=4)
    federation.wrap("client_app(task)", lies, "Lying")
    federation.node(0)
    federation.node(1)
    federation.node(2, lies="one more, nan, shape, missing, huge")
    federation.node(3, lies="narrow, round, no samples, negative, fraction")
    federation.run()
    federation.finish()
    assert [(line["asked"], line["replied"], line["rejected"]) for line in federation.rounds()] == [
        (4, 2, 4), (4, 2, 6), (4, 2, 8), (4, 2, 10)
    ]  # fmt: skip
    said = federation.said()
    for round_, client, reason in (
        (1, 2, "it sent 18 means and 18 label vectors; 356 samples with M_k=20 make 17"),
        (1, 3, "its means 'x' have shape (18, 63) instead of (any, 64)"),
        (1, 2, "its weights '1.weight' hold NaN or infinity"),
        (1, 3, "its update is for round 5 instead of 0"),
        (2, 2, "its weights '1.weight' have shape (32, 10) instead of (10, 32)"),
        (2, 3, "its number of samples is 0, not a positive integer"),
        (3, 2, "its weights lack '0.0.bias'"),
        (3, 3, "its number of samples is -4, not a positive integer"),
        (4, 2, "its update has norm 1.79e+07, more than 10 times that of the weights"),
        (4, 3, "its samples is 7.5 instead of an int"),
    ):
        assert said.count(f"round {round_}: a reply of client {client} is rejected: {reason}") == 1
    assert said.count("is rejected") == 10
    difference = largest_difference(federation.weights(), federation.simulated(clients=2).params)
    print(f"largest difference of a weight from a run without them: {difference:.2e}")
    assert difference <= 1e-5


def test_a_late_client_changed_data_and_a_policy_that_refuses(tmp_path: Path, link: Link) -> None:
    federation = Federated(tmp_path, link, rounds=7)
    policy = tmp_path / "policy.toml"
    policy.write_text("share_means = false\n")
    federation.node(0)
    federation.node(1)
    federation.node(2, policy=str(policy))
    federation.run(min_clients=3)
    federation.wait_until(lambda: len(federation.rounds()) == 1)
    assert (federation.rounds()[0]["replied"], federation.rounds()[0]["pool_version"]) == (3, 1)
    assert "client 2 refuses: its policy lets no means out" in federation.said()
    federation.node(3)
    federation.wait_until(lambda: "version 2 of the pool" in federation.said())
    with np.load(federation.data / "client-0.npz") as old:
        fewer = {name: old[name][:100] for name in ("x", "y")}
    np.savez(federation.data / "new.npz", **fewer)
    (federation.data / "new.npz").replace(federation.data / "client-0.npz")
    summary = federation.finish()
    last = federation.rounds()[-1]
    assert summary["rounds"] == 7
    assert (last["replied"], last["pool_version"], last["rejected"]) == (4, 3, 0)
    said = federation.said()
    assert said.count("the data of client 0 changed") == 1
    assert said.count("refuses") == 1


def test_a_link_that_is_slow_and_cut_for_some_seconds(tmp_path: Path, link: Link) -> None:
    """Two nodes are in another network (a namespace), behind a wire of 100 ms each way whose link
    goes down for 20 s.
    """
    inside, outside, network = "fedmix-in", "fedmix-out", "fedmix-test"
    commands = (
        f"ip netns add {network}",
        f"ip link add {outside} type veth peer name {inside}",
        f"ip link set {inside} netns {network}",
        f"ip addr add 10.99.0.1/24 dev {outside}",
        f"ip link set {outside} up",
        f"ip netns exec {network} ip addr add 10.99.0.2/24 dev {inside}",
        f"ip netns exec {network} ip link set {inside} up",
        f"ip netns exec {network} ip link set lo up",
    )
    if shutil.which("ip") is None:
        pytest.skip("there is no ip command here")
    try:
        for command in commands:
            if subprocess.run(command.split(), capture_output=True, check=False).returncode:
                pytest.skip("this machine lets nobody make a network namespace")
        federation = Federated(tmp_path, link, rounds=4)
        wire = Wire(link.port, host="10.99.0.1", delay=0.1)
        for client in (0, 1):
            federation.node(client)
        for client in (2, 3):
            federation.node(client, superlink=wire.address, within=("ip", "netns", "exec", network))
        federation.run()
        federation.wait_until(lambda: len(federation.rounds()) == 1)
        subprocess.run(["ip", "link", "set", outside, "down"], check=True)
        time.sleep(20)
        subprocess.run(["ip", "link", "set", outside, "up"], check=True)
        summary = federation.finish()
        assert summary["rounds"] == 4
        assert federation.rounds()[-1]["replied"] == 4
        assert wire.up > 0
        wire.close()
    finally:
        link.stop()
        subprocess.run(["ip", "link", "del", outside], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "del", network], capture_output=True, check=False)
