"""The server: its run folder, going on after a stop, its settings, and what it refuses before
anything is sent.
"""

import json
import logging
import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import flwr
import numpy as np
import pytest
import torch
from flwr.app import Message
from torch import Tensor, nn

from fedmix import BadInput, Collapsed, Run, report
from fedmix.data import alone
from fedmix.experiment.presets import experiment as preset
from fedmix.experiment.spec import Experiment
from fedmix.flower import Task, client_app
from fedmix.flower.remote import Remote
from fedmix.flower.roster import TooFew
from fedmix.flower.server import folder_of, serve
from fedmix.flower.settings import Settings
from fedmix.privacy import guarantee_of
from tests.flower.nodes import Nodes
from tests.flower.processes import EXAMPLE
from tests.flower.tasks import SIZES, light, own, remote, simulated, task


def config(tmp_path: Path, **more: Any) -> dict[str, Any]:
    return {"clients": len(SIZES), "out": str(tmp_path), "timeout": 5, "join-timeout": 1.0, **more}


def test_a_run_folder_like_that_of_a_local_run(tmp_path: Path) -> None:
    experiment = light(exchange={"m": 4})
    agreed = task(experiment)
    summary = serve(Nodes(client_app(agreed), range(4)), agreed, config(tmp_path))
    folder = folder_of(agreed, tmp_path)
    there = {path.name for path in folder.iterdir()}
    assert there >= {
        "experiment.toml",
        "environment.json",
        "metrics.jsonl",
        "summary.json",
        "clients.json",
        "federation.log",
    }
    assert there >= {"checkpoint.safetensors", "means-1.safetensors"}
    reference = simulated(experiment)
    rounds = list(reference.run(3))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert rounds[-1].metrics is not None
    assert lines[-1]["accuracy"] == summary["last"] == rounds[-1].metrics["accuracy"]
    assert (lines[-1]["bytes_up"], lines[-1]["bytes_down"]) == (
        reference.traffic.up,
        reference.traffic.down,
    )
    assert json.loads((folder / "clients.json").read_text()) == {
        "classes": None,
        "sizes": list(SIZES),
        "counts": [],
    }
    assert (
        json.loads((folder / "environment.json").read_text())["command"] == "flwr run"
    )  # and not Flower's own, with its token
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["flower"] == flwr.__version__
    assert environment["clients"] == f"4 with Flower {flwr.__version__}"
    said = (folder / "federation.log").read_text()
    assert "client 3 is there, as node" in said
    assert (
        f"round 3 is done: 3 of 3 clients replied well, accuracy {100 * summary['last']:.1f} %, "
        "loss " in said
    )
    report.write_html(report.load_runs([folder]), tmp_path / "report.html")
    assert (
        serve(Nodes(client_app(agreed), []), agreed, config(tmp_path)) == summary
    )  # done, so nobody is asked


def test_a_model_that_collapsed_ends_the_run_as_anywhere(tmp_path: Path) -> None:
    """By weight decay that takes more than training gives. Started again, it ends there at once."""
    training = {
        "clients_per_round": 3,
        "epochs": 2,
        "batch_size": 5,
        "lr": 0.02,
        "momentum": 0.5,
        "weight_decay": 2.0,
    }
    experiment = light({"name": "fedavg"}, training=training, rounds=40)
    with pytest.raises(Collapsed) as expected:
        list(simulated(experiment).run(40))
    agreed = task(experiment)
    for _ in range(2):
        with pytest.raises(Collapsed) as caught:
            serve(Nodes(client_app(agreed), range(4)), agreed, config(tmp_path))
        assert str(caught.value) == str(expected.value)
    said = (folder_of(agreed, tmp_path) / "federation.log").read_text().splitlines()
    assert said[-1].endswith(f" ERROR {expected.value}")
    assert sum("is done" in line for line in said) == expected.value.round


class Killed(Exception):
    pass


def test_a_server_that_was_killed_goes_on_with_its_pool(tmp_path: Path) -> None:
    experiment = light(exchange={"m": 4, "noise": 0.2})
    agreed = task(experiment)
    first = Nodes(client_app(agreed), range(4))

    def kill(line: dict[str, Any]) -> None:
        if line["round"] == 2:
            raise Killed

    folder = folder_of(agreed, tmp_path)
    settings = Settings.of(config(tmp_path))
    with pytest.raises(Killed):
        Run(experiment, folder, lambda: Remote(first, agreed, settings, {})).execute(
            kill, checkpoint_seconds=0.0
        )
    whole = remote(experiment, first)  # whose clients, asked again, answer with the noise they drew
    list(whole.run(3))
    again = Nodes(client_app(agreed), range(4))
    serve(again, agreed, config(tmp_path))
    assert not again.of_kind("query.means")
    chosen = {again.client_of(m) for m in again.of_kind("train")}
    assert all(len(again.of_kind("query.pool", k)) == 1 for k in chosen)
    state, _ = Run(experiment, folder).checkpoint.load() or ({}, {})
    assert int(state["round"]) == 3
    for name, weight in whole.params.items():
        assert torch.equal(state[f"params.{name}"], weight)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3]
    assert lines[2]["sent_up"] > lines[1]["sent_up"] > lines[0]["sent_up"]


def test_globalmix_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(
        BadInput, match="GlobalMix needs raw samples of other clients, which never leave them"
    ):
        Task.of(preset("digits", "globalmix"))


def test_a_client_whose_means_are_in_every_entry_is_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """17 means in entries of four or more: a client with seven of them may be in each."""
    experiment = light(
        exchange={"m": 4, "exclude_own": True, "average": 4},
        training={"clients_per_round": 4, "batch_size": 5},
    )
    real = remote(experiment, min_share=0.25)
    assert real.exchange is not None
    real._exchange_means(real.exchange)
    assert real.exchange.pool is not None
    owners = [real.exchange.pool.owners[i] for i in range(len(real.exchange.pool))]
    everywhere = [k for k in range(4) if all(k in entry for entry in owners)]
    assert 0 < len(everywhere) < 4
    with caplog.at_level(logging.WARNING, "fedmix.flower"):
        done = next(real.run(1))
    assert (done.notes["replied"], done.notes["rejected"]) == (4 - len(everywhere), len(everywhere))
    assert (
        f"client {everywhere[0]} is rejected: exchange: every entry of the pool holds data"
        in caplog.text
    )


def test_too_few_means_are_asked_for_again() -> None:
    experiment = light(
        exchange={"m": 4, "average": 15}, training={"clients_per_round": 4, "batch_size": 5}
    )
    nodes = Nodes(client_app(task(experiment)), range(4))
    lost: list[Message] = []

    def lose_first(asked: Message, reply: Message) -> Message | None:
        if asked.metadata.message_type == "query.means" and not lost:
            lost.append(asked)
            return None
        return reply

    nodes.tamper = {2: lose_first}
    real = remote(experiment, nodes, timeout=0.1)
    next(real.run(1))
    assert lost
    assert [len(nodes.of_kind("query.means", k)) for k in range(4)] == [2, 2, 2, 2]
    assert real.exchange is not None
    assert real.exchange.releases is not None
    assert len(real.exchange.releases.owner) == 5 + 2 + 7 + 3
    assert real.exchange.sent.tolist() == [2, 2, 2, 2]  # the lost ones, too, have left their client


def test_a_run_begins_with_clients_below_the_cutoff_and_waits_for_others() -> None:
    """Client 1 has 8 samples and client 0 has 23.

    What nobody has released yet is a mean of one sample at worst.
    """
    spec = light(
        exchange={"cutoff": 10, "clip": 1.0, "noise": 1.0}, training={"clients_per_round": 1}
    )
    nodes = Nodes(client_app(task(spec)), [1])
    federation = remote(spec, nodes, min_clients=1, attempts=1)
    assert guarantee_of(federation).mu == pytest.approx(
        2.0
    )  # by which a sample within a norm of 1 moves it, under noise of 1
    with pytest.raises(TooFew, match="no client has sent means"):
        next(federation.run(1))
    nodes.add(0)
    next(federation.run(1))
    assert guarantee_of(federation).mu == pytest.approx(2.0 / 23)


def test_a_round_that_fails_leaves_nobody_settled() -> None:
    nodes = Nodes(client_app(task(light(exchange={"m": 4}))), range(4))
    nodes.tamper = dict.fromkeys(
        range(4), lambda asked, reply: None if asked.metadata.message_type == "train" else reply
    )
    real = remote(light(exchange={"m": 4}), nodes, attempts=1, timeout=0.1)
    with pytest.raises(TooFew, match="0 of 3 clients replied well"):
        next(real.run(1))
    assert real.exchange is not None
    assert real.exchange.settled.tolist() == [0, 0, 0, 0]
    nodes.tamper = {}
    next(real.run(1))
    assert real.exchange.version == 1


def test_a_share_of_the_clients_is_not_rounded_up_by_arithmetic() -> None:
    """0.28 * 25 is 7.000000000000001: seven of 25 are enough."""
    experiment = light(
        {"name": "fedavg"}, training={"clients_per_round": 25, "batch_size": 5}, rounds=1
    )
    nodes = Nodes(client_app(task(experiment)), range(25))
    nodes.tamper = dict.fromkeys(
        range(18), lambda asked, reply: None if asked.metadata.message_type == "train" else reply
    )
    done = next(
        remote(experiment, nodes, clients=25, min_share=0.28, timeout=0.1, attempts=1).run(1)
    )
    assert done.notes["replied"] == 7


@pytest.mark.parametrize("algorithm", ["randommix", "localmeans"])
def test_controls_in_which_no_means_travel_are_refused(algorithm: str) -> None:
    with pytest.raises(BadInput, match="is a control for simulations"):
        Task.of(preset("digits", algorithm))


def test_own_data_is_refused_where_there_is_no_federation() -> None:
    with pytest.raises(BadInput, match="every client loads by itself; run it on Flower"):
        light().federation()


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({}, "clients is missing; add it to [tool.flwr.app.config]"),
        ({"clients": 0}, "clients=0 must be at least 1"),
        ({"clients": "4"}, "clients='4' must be int"),
        ({"clients": True}, "clients=True must be int"),
        ({"clients": 4, "min-clients": 5}, "min-clients=5 must be between 0 and clients=4"),
        ({"clients": 4, "min-share": 0.0}, "min-share=0.0 must be above 0"),
        ({"clients": 4, "timeout": float("inf")}, "timeout=inf must be positive and finite"),
        ({"clients": 4, "attempts": 0}, "attempts=0 must be at least 1"),
        ({"clients": 4, "largest-update": -1}, "largest-update=-1 must be positive"),
        ({"clients": 4, "out": 3}, "out=3 must be str"),
    ],
)
def test_bad_settings_are_refused_in_one_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=re.escape(sentence)):
        Settings.of(values)


def test_the_examples_app_has_every_setting() -> None:
    """Flower takes no key by --run-config that the app's configuration lacks."""
    project: dict[str, Any] = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())
    given = project["tool"]["flwr"]["app"]["config"]
    known = {field.name.replace("_", "-") for field in fields(Settings)}
    assert set(given) == known - {"command"}  # which `fedmix federation run` gives
    assert Settings.of(given) == Settings(clients=4)


def test_more_clients_a_round_than_there_are_is_refused(tmp_path: Path) -> None:
    agreed = task(light(training={"clients_per_round": 9}))
    nodes = Nodes(client_app(agreed), range(4))
    with pytest.raises(BadInput, match="clients_per_round=9 is more than the 4 clients"):
        serve(nodes, agreed, config(tmp_path))
    assert not nodes.sent


def test_a_model_that_does_not_take_a_clients_samples_is_told_by_that_client(
    tmp_path: Path,
) -> None:
    agreed = task(Experiment.of(light().values() | {"model": {"name": "digits_cnn"}}))
    with pytest.raises(BadInput, match="the model does not take inputs of shape"):
        serve(Nodes(client_app(agreed), range(4)), agreed, config(tmp_path))


class Rounded(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(nn.functional.one_hot(x.long().clamp(0, 4), 5).float().flatten(1))


def test_an_objective_that_cannot_train_the_model_is_refused_before_anything_is_sent(
    tmp_path: Path,
) -> None:
    held_out = alone(np.arange(24.0).reshape(4, 6) % 5, np.array([0, 1, 2, 0]), classes=3)
    agreed = Task.of(light(), own, lambda _: held_out, module=lambda _: Rounded(30, 3))
    nodes = Nodes(client_app(agreed), range(4))
    with pytest.raises(BadInput, match="the model takes inputs for whole numbers"):
        serve(nodes, agreed, config(tmp_path))
    assert not nodes.sent
