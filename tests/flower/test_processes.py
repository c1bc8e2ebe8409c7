"""One federation of real processes with TLS and keys: three SuperNodes, two rounds, looked at from
several sides.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmix.flower.keys import make_keys
from fedmix.flower.processes import Link
from tests.flower.processes import Federated, Wire, largest_difference

CLIENTS = 3
SETTINGS = {
    "rounds": 2,
    "model.hidden": 512,
    "training.epochs": 1,
    "training.clients_per_round": CLIENTS,
}


@pytest.fixture(scope="module")
def federated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Federated, Wire]]:
    folder = tmp_path_factory.mktemp("federation")
    keys = make_keys(folder / "keys", ["learn.example.org"], CLIENTS + 1)
    with Link(folder / "link", keys, {"OMP_NUM_THREADS": "1"}) as link:
        wire = Wire(link.port)
        federation = Federated(folder, link, **SETTINGS)
        for client in range(CLIENTS):
            link.register(client)
            federation.node(client, superlink=wire.address)
        federation.run(clients=CLIENTS)
        link.start_node(CLIENTS, data=str(federation.data))  # whose key nobody registered
        federation.finish()
        yield federation, wire
        wire.close()


def test_weights_are_those_of_the_sequential_engine(federated: tuple[Federated, Wire]) -> None:
    federation, _ = federated
    reference = federation.simulated(CLIENTS)
    difference = largest_difference(federation.weights(), reference.params)
    print(f"largest difference of a weight: {difference:.2e}")
    assert difference <= 1e-5
    last = federation.rounds()[-1]
    assert (last["bytes_up"], last["bytes_down"]) == (reference.traffic.up, reference.traffic.down)


def test_bytes_counted_are_those_on_the_wire_and_means_travel_once(
    federated: tuple[Federated, Wire],
) -> None:
    federation, wire = federated
    first, last = federation.rounds()
    assert first["means_up"] == last["means_up"] > 0
    assert first["means_down"] == last["means_down"] == CLIENTS * first["means_up"]
    for way, passed in (("up", wire.up), ("down", wire.down)):
        print(way, last[f"models_{way}"], last[f"means_{way}"], last[f"sent_{way}"], passed)
        assert last[f"bytes_{way}"] < last[f"sent_{way}"] < 1.02 * last[f"bytes_{way}"]
        overhead = 500_000 + 20_000 * (
            60 + last["seconds"]
        )  # the app, heartbeats, polls, TLS: it grows with time, not with the model
        assert last[f"sent_{way}"] < passed < last[f"sent_{way}"] + overhead


def test_a_node_with_a_key_that_is_not_registered_is_kept_out(
    federated: tuple[Federated, Wire],
) -> None:
    federation, _ = federated
    stranger = federation.link.processes[f"node-{CLIENTS}"]
    assert stranger.wait(60) != 0
    assert "ref-exit-codes/305" in (federation.link.folder / f"node-{CLIENTS}.log").read_text()
    assert all(line["clients"] == CLIENTS for line in federation.rounds())


def test_a_client_without_the_authoritys_certificate_stays_out(
    federated: tuple[Federated, Wire], tmp_path: Path
) -> None:
    link = federated[0].link
    assert link.keys is not None
    other = make_keys(tmp_path / "other", ["127.0.0.1"], 1)
    where = ["--superlink", link.address, "--port", str(link.hold_port())]
    key = ["--auth-supernode-private-key", str(link.keys.node(0))]  # which is registered
    stranger = link.start(
        "no-ca", ["flower-supernode", "--root-certificates", str(other.ca), *key, *where]
    )
    assert stranger.wait(120) != 0
    assert "ref-exit-codes/305" in (link.folder / "no-ca.log").read_text()


def test_nothing_is_left_running(tmp_path: Path) -> None:
    with Link(tmp_path) as link:
        groups = [process.pid for process in link.processes.values()]
    time.sleep(0.1)
    for group in groups:
        with pytest.raises(ProcessLookupError):
            os.killpg(group, 0)
