"""Metrics of a running federation at an address, in Prometheus' format."""

import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from fedmix import BadInput
from fedmix.cli import federation
from fedmix.flower import client_app
from fedmix.flower.prometheus import exposed
from fedmix.flower.server import folder_of, serve
from tests.flower.nodes import Nodes
from tests.flower.tasks import light, task
from tests.flower.test_server import config


def free_address() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{one.getsockname()[1]}"


def read(address: str) -> list[str]:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:
        return [line for line in answer.read().decode().splitlines() if line[0] != "#"]


def test_the_last_round_is_served_while_the_block_lasts() -> None:
    address, heard = free_address(), list[dict[str, Any]]()
    with exposed(address, heard.append) as listen:
        assert read(address) == []
        listen({"round": 1, "accuracy": 0.25, "recall of 3": None})
        listen({"round": 2, "accuracy": 0.5, "recall of 3": 0.75})
        assert sorted(read(address)) == [
            "fedmix_accuracy 0.5",
            "fedmix_recall_of_3 0.75",
            "fedmix_round 2.0",
        ]
        assert [line["round"] for line in heard] == [1, 2]
    with pytest.raises(OSError, match="refused"):
        read(address)


@pytest.mark.parametrize("address", ["9464", ":9464", "localhost:", "localhost:x", "a:70000"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with (
        pytest.raises(BadInput, match=r"is no HOST:PORT, such as 127\.0\.0\.1:9464"),
        exposed(address, print),
    ):
        pass


def test_an_address_that_is_taken_is_refused_and_nothing_runs(tmp_path: Path) -> None:
    agreed = task(light())
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(BadInput, match=f"metrics-address={taken} cannot be used"):
            serve(
                Nodes(client_app(agreed), range(4)),
                agreed,
                config(tmp_path, **{"metrics-address": taken}),
            )
    assert not (folder_of(agreed, tmp_path) / "metrics.jsonl").exists()


def test_a_wrong_address_is_told_before_a_process_starts(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="metrics-address='9464' is no HOST:PORT"):
        federation.run("digits", nodes=5, metrics_address="9464", out=tmp_path, quiet=True)
    assert not list(tmp_path.iterdir())


def test_a_tracker_that_is_none_is_told_before_a_process_starts(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="'tensorbord' is unknown; did you mean tensorboard"):
        federation.run("digits", nodes=5, track="tensorbord", out=tmp_path, quiet=True)
    assert not list(tmp_path.iterdir())


def test_a_server_logs_to_tensorboard_and_serves_its_metrics(tmp_path: Path) -> None:
    agreed = task(light())
    more = {"metrics-address": free_address(), "track": "tensorboard"}
    serve(Nodes(client_app(agreed), range(4)), agreed, config(tmp_path, **more))
    assert list((folder_of(agreed, tmp_path) / "tensorboard").glob("events.*"))
