"""What would fail in a federation, found before it runs: versions, settings, data, policy, keys."""

import importlib.util
import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import flwr
import torch
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from flwr.app import Context, RecordDict

import fedmix
from fedmix.core.errors import BadInput, FedmixError, first_line
from fedmix.core.files import read_toml
from fedmix.core.nearest import choice
from fedmix.exchange import Exchange
from fedmix.flower.client import Party
from fedmix.flower.keys import Keys
from fedmix.flower.owner import Owner
from fedmix.flower.prometheus import exposed
from fedmix.flower.refusals import Refused
from fedmix.flower.remote import prepared
from fedmix.flower.settings import Settings
from fedmix.flower.task import Task
from fedmix.flower.terms import Terms, code, experiment_id
from fedmix.runs.trackers import tracking

LARGEST = 1 << 16  # bytes of a pyproject.toml
Config = Mapping[str, Any]


class Finding(NamedTuple):
    """One thing that was looked at: what it is, whether it holds, and what was found."""

    what: str
    holds: bool
    said: str


def findings(
    app: Path,
    run_config: Config,
    node_configs: Sequence[Config],
    keys: Path | None = None,
    *,
    server: bool = True,
) -> Iterator[Finding]:
    """Yield what was found, each as soon as it is known.

    Nothing is sent, and nothing is written.

    Args:
        app: Folder of the app, with pyproject.toml.
        run_config: What overrides the app's run configuration.
        node_configs: Configurations of nodes whose data and policies are here.
        keys: Folder that `fedmix federation keys` made, or a part of it.
        server: Whether the server's samples are here, to be looked at too.

    Raises:
        BadInput: The folder is no app, its app has no Task, or an override is of no key that it
            has.
    """
    config, task = load_app(app)
    for key in run_config:
        if key not in config:
            raise BadInput(
                f"run config: Flower takes keys of [tool.flwr.app.config] in pyproject.toml only, "
                f"and {key!r:.80} is none; {choice(key, config)}"
            )
    config = {**config, **run_config}
    yield Finding("versions", True, versions(task))
    terms = list[Terms]()

    def on_server() -> str:
        settings = Settings.of(config)
        with (
            tracking(settings.track, Path(settings.out), {}) as listen,
            exposed(settings.metrics_address, listen),
        ):
            tests, model, device = prepared(task, settings, config)
        terms.append(Terms.of(tests, task.exchange, task.experiment.identity))
        weights = sum(p.numel() for p in model.init().values())
        return f"{len(tests.held_out.x)} test samples, a model of {weights:,} weights on {device}"

    if server:
        yield _tried("server", on_server)
    numbers = set[int]()
    for node in node_configs:
        name = f"client {node.get('partition-id', '?')}"
        yield _tried(name, partial(_client, task, config, node, terms, numbers))
    if keys is not None:
        for path, look in _looks(Keys(keys)):
            yield _tried(path.name, look)


def load_app(folder: Path) -> tuple[dict[str, Any], Task]:
    """Return the run configuration and the task of an app.

    Raises:
        BadInput: The folder is no app of Flower, its module cannot be loaded, or it has no Task.
    """
    project = read_toml(folder / "pyproject.toml", LARGEST, "give the folder of a Flower app")
    try:
        said = project["tool"]["flwr"]["app"]
        module = str(said["components"]["clientapp"]).partition(":")[0]
    except (KeyError, TypeError):
        raise BadInput(
            f"{folder / 'pyproject.toml'} names no clientapp in [tool.flwr.app.components]"
        ) from None
    path = folder.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    spec = importlib.util.spec_from_file_location(module, path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(folder))
    try:
        spec.loader.exec_module(loaded)
    except Exception as error:
        raise BadInput(f"{path} cannot be loaded: {first_line(error)}") from error
    finally:
        sys.path.remove(str(folder))
    tasks = [value for value in vars(loaded).values() if isinstance(value, Task)]
    if not tasks:
        raise BadInput(
            f"{path} has no fedmix.flower.Task, by which an app can be checked; WithMeans checks "
            "other apps in the roll call"
        )
    return dict(said.get("config", {})), tasks[0]


def versions(task: Task) -> str:
    """Return what has to be the same on every machine, and what may differ."""
    id_ = experiment_id(task.exchange, task.experiment.identity)
    return (
        f"fedmix {fedmix.__version__} (code {code()}), experiment {id_}: the same "
        f"everywhere; flwr {flwr.__version__}, torch {torch.__version__}, Python "
        f"{platform.python_version()}"
    )


def _tried(what: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(what, True, look())
    except Exception as error:  # of any kind: the owner's own functions and files are looked at
        # a refusal points to the node's log, in which its cause is
        why = (isinstance(error, Refused) and error.__cause__) or error
        said = str(why) if isinstance(why, FedmixError) else first_line(why)
        return Finding(what, False, said)


def _client(
    task: Task, config: Config, node: Config, server: list[Terms], numbers: set[int]
) -> str:
    """Load a client as its node does, and say what would leave it.

    Args:
        task: What the app trains.
        config: Its run configuration.
        node: The node's configuration.
        server: The server's terms, if they are known.
        numbers: Those of the clients before it, to which its own is added.
    """

    def load(context: Context) -> Any:
        return task.load(int(str(node["partition-id"])), {**config, **context.node_config})

    context = Context(0, 0, dict(node), RecordDict(), dict(config))
    owner = Owner.of(context, load, None, task.exchange, task.experiment.identity)
    Party.of(task, owner)
    clients = config.get("clients")
    if isinstance(clients, int) and not 0 <= owner.client < clients:
        raise BadInput(f"there are clients 0..{clients - 1}; correct its partition-id")
    if owner.client in numbers:
        raise BadInput("another node here has its partition-id; give each its own")
    numbers.add(owner.client)
    if server:
        server[0].check(owner.terms)
    weights = "weights leave it" if owner.trains else "no weights leave it, by its policy"
    said = f"{owner.samples} samples of shape {owner.terms.shape}, {owner.terms.labels}; {weights}"
    return f"{said}, and {_means(owner, task.exchange)}" if task.exchange else said


def _means(owner: Owner, agreed: Exchange) -> str:
    try:
        how = owner.policy.applied(agreed, owner.client, owner.samples)
        owner.policy.check_release(owner.account)
    except Refused as why:
        return f"no means: {why}"
    if owner.samples < how.cutoff:
        return f"no means: it is below the cut-off of {how.cutoff}"
    m = how.group_size(owner.client, owner.samples)
    noise = f"noise of {how.noise:g}" if how.noise else "without noise"
    return f"about {owner.samples // m} means of M_k={m}, {noise}"


def _looks(keys: Keys) -> Iterator[tuple[Path, Callable[[], str]]]:
    """Yield the files of a folder of keys that are there, and how each is looked at."""
    yield keys.ca, lambda: _dates(_certificate(keys.ca))
    if keys.certificate.exists() or keys.key.exists():
        yield keys.certificate, lambda: _server_certificate(keys)
    for path in sorted(keys.folder.glob("client-*.key")):
        yield path, partial(_client_key, path)


def _certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def _dates(certificate: x509.Certificate) -> str:
    now, until = datetime.now(UTC), certificate.not_valid_after_utc
    if not certificate.not_valid_before_utc <= now < until:
        since = certificate.not_valid_before_utc
        raise BadInput(f"it is valid from {since:%Y-%m-%d} to {until:%Y-%m-%d}; make new keys")
    return f"valid until {until:%Y-%m-%d}"


def _server_certificate(keys: Keys) -> str:
    ours = _certificate(keys.certificate)
    try:
        ours.verify_directly_issued_by(_certificate(keys.ca))
    except (InvalidSignature, ValueError):
        raise BadInput("ca.crt did not sign it; both must come from one run of keys") from None
    key = serialization.load_pem_private_key(keys.key.read_bytes(), None)
    if _public(key.public_key()) != _public(ours.public_key()):
        raise BadInput("server.key is not its key; both must come from one run of keys")
    names = ours.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    hosts = ", ".join(re.sub(r"[^\w.:*-]", "?", str(name.value)) for name in names)
    return f"{_dates(ours)}, for {hosts}"


def _client_key(path: Path) -> str:
    key = serialization.load_ssh_private_key(path.read_bytes(), None)
    if path.stat().st_mode & 0o077:
        raise BadInput("other users can read it; run chmod 600 on it")
    public = path.with_suffix(".pub")
    if not public.exists():
        return "a key; its .pub is not here"
    if _public(key.public_key()) != _public(serialization.load_ssh_public_key(public.read_bytes())):
        raise BadInput(f"{public.name} is not its public key")
    return "a key, with its .pub"


def _public(key: Any) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    said: bytes = key.public_bytes(serialization.Encoding.DER, form)
    return said
