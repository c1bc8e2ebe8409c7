"""What a node says of its data, paths and settings stays with it: markers are planted there, and
looked for at the server.
"""

import io
import logging
import subprocess
import sys
from collections import OrderedDict
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from torch import Tensor, nn

from fedmix import FedMix, Hidden
from fedmix.data import FederatedData, alone
from fedmix.exchange import Exchange
from fedmix.flower import client_app, share_means, wire
from fedmix.flower.messages import content_of
from fedmix.flower.refusals import REASONS
from fedmix.flower.server import serve
from fedmix.flower.wire import Rejected, read_array
from fedmix.models import initialised
from tests.flower import own_app
from tests.flower.leaks import FAULTS, NUMBER, fail, spoilt
from tests.flower.lies import header
from tests.flower.nodes import Nodes
from tests.flower.tasks import CLASSES, EVERYONE, SIZES, TEST, WIDTH, light, samples, task

SECRET = "HIV_positive"
POLICIES = {
    "a key": f"{SECRET} = 1",
    "a value": f'least_m = "{SECRET}"',
    "what is no TOML": SECRET,
    "a number": f"least_m = {NUMBER}",
    "noise": f"least_noise = 0.{NUMBER}",
}
SECURE: dict[str, Any] = {"m": "all", "average": 2, "clip": 3.0, "secure": "secagg+"}
HARMLESS = ("loud", "an outlier", "a late outlier", "a good name")
LOGS = [logging.getLogger(name) for name in ("fedmix.flower", "flwr")]


class Apart(ClientApp):
    """An app whose logs and output are a node's own, as in a process of its own; all replies are
    kept.
    """

    def __init__(self, app: ClientApp) -> None:
        super().__init__()
        self.app, self.said, self.replies = app, io.StringIO(), list[Message]()

    def __call__(self, message: Message, context: Context) -> Message:
        before, handler = (
            [(log.handlers, log.propagate) for log in LOGS],
            logging.StreamHandler(self.said),
        )
        for log in LOGS:
            log.handlers, log.propagate = [handler], False
        try:
            with redirect_stdout(self.said), redirect_stderr(self.said):
                self.replies.append(self.app(message, context))
        finally:
            for log, (handlers, propagate) in zip(LOGS, before, strict=True):
                log.handlers, log.propagate = handlers, propagate
        return self.replies[-1]


def everything_in(message: Message) -> str:
    """All that a message says: names, values, types and bytes of arrays, or an error."""
    if message.has_error():
        return repr(message.error)
    return repr([(name, type(record), dict(record)) for name, record in message.content.items()])


class Picky(FedMix):
    """An objective of the user's own that does not take the outlier of one client, and says so."""

    def __call__(self, model: Any, params: Any, anchor: Any, batch: Any) -> Any:
        if (batch.x > 20).any():
            fail(Exception, SECRET)
        return super().__call__(model, params, anchor, batch)


class Squeamish(nn.Module):
    """A layer of the user's own that does not take an outlier, and says so."""

    def forward(self, x: Tensor) -> Tensor:
        if (x > 20).any():
            fail(RuntimeError, SECRET)
        return x


def squeamish(data: FederatedData) -> nn.Module:  # noqa: ARG001 - as any task's
    return initialised(
        lambda: nn.Sequential(Squeamish(), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)), 3
    )


def named_after(data: FederatedData) -> nn.Module:
    """A module of the user's own, whose parts are named after the data."""
    return initialised(
        lambda: nn.Sequential(OrderedDict({data.name: nn.Linear(WIDTH, CLASSES)})), 3
    )


def served(
    tmp_path: Path, config: dict[str, Any], exchange: dict[str, Any], **more: Any
) -> tuple[str, str]:
    """What the server got and wrote, and what the nodes said to themselves, in a run in which the
    last node is at fault.
    """
    agreed = task(light(exchange=exchange, training=EVERYONE, rounds=2))
    agreed = replace(agreed, load=spoilt(agreed.load), **more)
    app, out = Apart(client_app(agreed)), tmp_path / "server"
    nodes = Nodes(app, range(3))
    nodes.contexts[nodes.add(3)].node_config.update(config)
    serve(
        nodes,
        agreed,
        {
            "clients": 4,
            "out": str(out),
            "timeout": 5,
            "join-timeout": 1.0,
            "attempts": 1,
            "min-clients": 3,
        },
    )
    files = [
        path.name + path.read_bytes().decode("latin-1") for path in out.rglob("*") if path.is_file()
    ]
    assert len(app.replies) >= 3 * 4  # the others went through with it
    return "".join([*files, *map(everything_in, app.replies)]), app.said.getvalue()


def marks_in(text: str) -> list[str]:
    return [mark for mark in (SECRET, str(NUMBER)) if mark in text]


class Looks:
    """Looks for the markers in all that the server gets, writes and says, and in the node's own
    log.
    """

    def __init__(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
    ) -> None:
        self.tmp_path, self.capfd, self.caplog = tmp_path, capfd, caplog

    def __call__(
        self, config: dict[str, Any], exchange: dict[str, Any], told: str = "", **more: Any
    ) -> str:
        at_server, at_node = served(self.tmp_path, config, exchange, **more)
        at_server += "".join(self.capfd.readouterr()) + self.caplog.text
        assert marks_in(at_server) == []
        assert f"refuses: {told}" in at_server if told else "refuses" not in at_server
        return at_node


@pytest.fixture
def look(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> Looks:
    return Looks(tmp_path, capfd, caplog)


EXCHANGES = pytest.mark.parametrize("exchange", [{"m": 4}, SECURE], ids=["clear", "secure"])


@pytest.mark.filterwarnings("ignore:HIV_positive")
@EXCHANGES
@pytest.mark.parametrize(
    "name", [name for name in FAULTS if name != "an exit"]
)  # which ends the process
def test_what_a_load_function_says_stays_at_its_node(
    name: str, exchange: dict[str, Any], look: Looks
) -> None:
    at_node = look({"fault": name, "secret": SECRET}, exchange, "" if name in HARMLESS else "its ")
    assert marks_in(at_node) or name.startswith("text") or name in HARMLESS, at_node


@EXCHANGES
@pytest.mark.parametrize("name", [*POLICIES, "its path"])
def test_what_a_policy_says_stays_at_its_node(
    name: str, exchange: dict[str, Any], tmp_path: Path, look: Looks
) -> None:
    path = tmp_path / f"{SECRET}.toml"
    if name in POLICIES:
        path.write_text(POLICIES[name])
    told = {"a number": "withheld", "noise": ""}.get(name, "policy")
    at_node = look({"policy": str(path)}, exchange, REASONS[told] if told else "")
    assert marks_in(at_node) or name == "noise"


@pytest.mark.parametrize(("key", "told"), [("partition-id", "number"), ("device", "failed")])
def test_what_a_nodes_configuration_says_stays_there(key: str, told: str, look: Looks) -> None:
    look({key: SECRET}, {"m": 4}, REASONS[told])


def test_what_an_objective_says_stays_at_its_node(look: Looks) -> None:
    told = "its local update failed at step "
    assert marks_in(look({"fault": "an outlier"}, {"m": 4}, told, objective=Picky(lam=0.1)))


@pytest.mark.parametrize(
    ("fault", "layer", "told"),
    [
        ("an outlier", 0, REASONS["failed"]),  # when the model is tried
        ("a late outlier", 0, "its local update failed at step "),
        ("a late outlier", 2, REASONS["failed"]),  # when hidden states are computed
    ],
)
def test_what_a_model_says_stays_at_its_node(
    fault: str, layer: int, told: str, look: Looks
) -> None:
    objective = Hidden(FedMix(lam=0.1), layer) if layer else FedMix(lam=0.1)
    more: dict[str, Any] = {"module": squeamish, "objective": objective}
    assert marks_in(look({"fault": fault}, {"m": 4}, told, **more))


def test_names_of_a_nodes_weights_stay_there(look: Looks) -> None:
    """Where they are not the server's, whose message it is that is refused."""
    look(
        {"fault": "a good name", "secret": SECRET}, {"m": 4}, REASONS["message"], module=named_after
    )


def test_what_flower_says_of_a_nodes_error_is_not_written(caplog: pytest.LogCaptureFixture) -> None:
    """Its reason comes from the node, and may be long, or steer a terminal."""
    nodes = Nodes(client_app(task(light())), [0])
    asked = Message(RecordDict(), dst_node_id=nodes.node_of(0), message_type="query.join")
    for code, sentence in (
        (2, "its app failed; its own log says why"),
        (5, "its node is gone"),
        (99, "Flower's error 99"),
    ):
        assert (
            content_of(Message(Error(code, f"\x1b[31m{SECRET}"), reply_to=asked), "node 1") is None
        )
        assert caplog.messages[-1] == f"node 1 gives no reply: {sentence}"


def test_a_flower_that_makes_errors_elsewhere_is_refused() -> None:
    """In a process of its own, as an app is loaded."""
    there = "sys.modules['flwr.supernode.runtime.run_clientapp']"
    load = f"import sys, types; {there} = types.ModuleType('m'); import fedmix.flower"
    said = subprocess.run([sys.executable, "-c", load], capture_output=True, text=True)
    assert said.stderr.splitlines()[-1].startswith("ImportError: fedmix takes the text off")


def test_a_lying_nodes_types_cannot_steer_a_terminal() -> None:
    """A type may have fields of any name, and as many as one likes."""
    fields = [(f"\x1b[31m{i}", "<f4") for i in range(9)]
    data = header(f"{{'descr': {fields}, 'fortran_order': False, 'shape': (3,), }}".encode())
    with pytest.raises(Rejected) as told:
        read_array(data, "weights", (3,), np.float32)
    assert str(told.value).isprintable()
    assert len(str(told.value)) < 120


def test_clients_with_the_same_samples_are_not_seen_to_have_them() -> None:
    """The digest tells one client's samples from those that it had before, within one run."""

    def digest(seed: int, client: int, rows: int) -> int:
        agreed = replace(
            task(light(seed=seed)),
            load=lambda *_: alone(*(part[:rows] for part in TEST), classes=CLASSES),
        )
        context = Context(1, 1, {"partition-id": client}, RecordDict(), {})
        nodes = Nodes(client_app(agreed), [])
        asked = Message(RecordDict(), dst_node_id=1, message_type="query.join")
        return wire.Presence.read(nodes.app(asked, context).content, 2).digest

    assert digest(7, 0, 9) == digest(7, 0, 9)
    assert len({digest(7, 0, 9), digest(7, 1, 9), digest(8, 0, 9), digest(7, 0, 8)}) == 4


def shared(tmp_path: Path, config: dict[str, Any], exchange: Exchange, step: Any) -> Apart:
    """A user's own app that shares means, after two rounds in which its last node is at fault.

    Its training is the user's too.
    """
    load = spoilt(lambda client, _: alone(*samples(client, SIZES[client]), classes=CLASSES))
    own = own_app.client_app(step)

    def given(context: Context) -> FederatedData:
        return load(int(str(context.node_config["partition-id"])), context.node_config)

    share_means(own, given, exchange)
    app = Apart(own)
    nodes = Nodes(app, range(3))
    nodes.contexts[nodes.add(3)].node_config.update(config)
    strategy = own_app.with_means(
        FedAvg(), exchange, min_clients=3, attempts=1, ledger=tmp_path / "releases.json"
    )
    strategy.start(nodes, own_app.start(), num_rounds=2)
    assert len(app.replies) >= 3 * 4
    return app


@pytest.mark.filterwarnings("ignore:HIV_positive")
@pytest.mark.parametrize("exchange", [Exchange(m=4), Exchange(**SECURE)], ids=["clear", "secure"])
@pytest.mark.parametrize(
    "name", [*(name for name in FAULTS if name != "an exit"), "a policy", "its path", "training"]
)
def test_what_an_app_of_ones_own_says_stays_at_its_node(
    name: str,
    exchange: Exchange,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = {"fault": name, "secret": SECRET}
    step: Any = fails if name == "training" else own_app.mixing
    if name in ("a policy", "its path"):
        path = tmp_path / f"{SECRET}.toml"
        config = {"policy": str(path)}
        if name == "a policy":
            path.write_text(f"{SECRET} = 1")
    if name == "training":
        config = {}
    app = shared(tmp_path, config, exchange, step)
    at_server = "".join(map(everything_in, app.replies)) + caplog.text
    at_server += "".join(capfd.readouterr()) + (tmp_path / "releases.json").read_text()
    assert marks_in(at_server) == []
    assert ("refuses: its " in at_server) == (name not in HARMLESS)
    assert marks_in(app.said.getvalue()) or name.startswith("text") or name in HARMLESS


def fails(*_: Any) -> Any:
    fail(Exception, SECRET)
