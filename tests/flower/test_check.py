"""What `fedmix federation check` finds: versions, settings, data, policies, certificates, keys."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedmix import BadInput
from fedmix.cli import federation
from fedmix.flower.check import Finding, findings
from fedmix.flower.keys import make_keys
from tests.flower.processes import EXAMPLE


@pytest.fixture
def app(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLE, tmp_path / "app"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two clients of 40 and 25 samples of 64 values, and a test set."""
    folder = tmp_path / "data"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name, count in (("client-0", 40), ("client-1", 25), ("test", 30)):
        x = rng.random((count, 64), np.float32)
        np.savez(folder / f"{name}.npz", x=x, y=np.arange(count) % 10)
    return folder


def found(app: Path, data: Path, *nodes: dict[str, Any], **more: Any) -> dict[str, Finding]:
    config = {"data": str(data), "clients": 4, **more.pop("config", {})}
    at = [{"data": str(data), **node} for node in nodes]
    return {one.what: one for one in findings(app, config, at, **more)}


def test_what_would_work_says_what_would_leave_each_client(app: Path, data: Path) -> None:
    """M_k is 20: 40 samples make two means, and 25 samples one."""
    said = found(app, data, {"partition-id": 0}, {"partition-id": 1})
    assert all(one.holds for one in said.values())
    assert list(said) == ["versions", "server", "client 0", "client 1"]
    assert "30 test samples" in said["server"].said
    assert said["client 0"].said.endswith("about 2 means of M_k=20, without noise")
    assert said["client 1"].said.endswith("about 1 means of M_k=20, without noise")


def test_versions_are_said_and_an_experiment_has_an_id_of_its_own(app: Path, data: Path) -> None:
    before = found(app, data)["versions"].said
    for word in ("fedmix ", "flwr ", "torch ", "Python ", "the same everywhere"):
        assert word in before
    spec = app / "experiment.toml"
    spec.write_text(spec.read_text().replace("m = 20", "m = 10"))
    assert found(app, data)["versions"].said != before


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("least_m = 30", "about 1 means of M_k=30, without noise"),
        ("least_noise = 0.25", "noise of 0.25"),
        (
            "share_means = false",
            "; weights leave it, and no means: the policy of client 0 lets no means out",
        ),
        ("least_m = 41", "no means: client 0 has fewer samples than the 41 that its policy wants"),
        (
            "share_weights = false",
            "no weights leave it, by its policy, and about 2 means of M_k=20",
        ),
    ],
)
def test_a_stricter_policy_holds(policy: str, said: str, app: Path, data: Path) -> None:
    (data / "policy.toml").write_text(policy)
    one = found(app, data, {"partition-id": 0, "policy": str(data / "policy.toml")})["client 0"]
    assert one.holds
    assert said in one.said


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ('experiments = ["another"]', "the policy does not accept the experiment"),
        ('fedmix = ["9.9"]', "the policy does not accept fedmix"),
        ("least_mm = 3", "'least_mm' is not a setting of a policy"),
    ],
)
def test_a_policy_that_keeps_the_client_out(policy: str, said: str, app: Path, data: Path) -> None:
    (data / "policy.toml").write_text(policy)
    one = found(app, data, {"partition-id": 0, "policy": str(data / "policy.toml")})["client 0"]
    assert not one.holds
    assert said in one.said


def test_data_that_do_not_fit_the_servers(app: Path, data: Path) -> None:
    np.savez(data / "client-0.npz", x=np.zeros((40, 65), np.float32), y=np.arange(40) % 10)
    said = found(app, data, {"partition-id": 0}, {"partition-id": 7}, {})
    assert not any(one.holds for name, one in said.items() if name.startswith("client"))
    assert "(65,)" in said["client 0"].said
    assert "client-7.npz" in said["client 7"].said
    assert "partition-id is no client's number" in said["client ?"].said


def test_a_device_that_is_none(app: Path, data: Path) -> None:
    said = found(app, data, {"partition-id": 0, "device": "gpu"})["client 0"]
    assert not said.holds
    assert said.said.startswith("device 'gpu'")


def test_a_number_that_is_no_clients_or_anothers(app: Path, data: Path) -> None:
    (data / "client-1.npz").rename(data / "client-4.npz")
    said = found(app, data, {"partition-id": 4})["client 4"]
    assert said == ("client 4", False, "there are clients 0..3; correct its partition-id")
    said = found(app, data, {"partition-id": 0}, {"partition-id": 0})["client 0"]
    assert not said.holds
    assert said.said == "another node here has its partition-id; give each its own"


def test_settings_of_the_server(app: Path, data: Path) -> None:
    one = found(app, data, config={"min-share": 2.0})["server"]
    assert one == ("server", False, "run config: min-share=2.0 must be above 0 and at most 1")
    nowhere = found(app, data, config={"metrics-address": "9464"})["server"]
    assert "metrics-address='9464' is no HOST:PORT" in nowhere.said
    nobody = found(app, data, config={"track": "tensorbord"})["server"]
    assert "did you mean tensorboard" in nobody.said
    with pytest.raises(BadInput, match="'trak' is none; did you mean track"):
        found(app, data, config={"trak": "tensorboard"})
    few = found(app, data, config={"clients": 1})["server"]
    assert "more than the 1 clients" in few.said
    assert "server" not in found(app, data, server=False)


def test_certificates_and_keys(app: Path, data: Path, tmp_path: Path) -> None:
    keys = make_keys(tmp_path / "keys", ["learn.example.org"], 2)
    other = make_keys(tmp_path / "other", ["learn.example.org"], 2)
    said = found(app, data, keys=keys.folder)
    assert all(one.holds for one in said.values())
    assert "for learn.example.org, localhost, 127.0.0.1" in said["server.crt"].said
    shutil.copy(other.ca, keys.ca)
    said = found(app, data, keys=keys.folder)
    assert said["server.crt"].said.startswith("ca.crt did not sign it")
    shutil.copy(other.certificate, keys.certificate)
    said = found(app, data, keys=keys.folder)
    assert said["server.crt"].said.startswith("server.key is not its key")
    shutil.copy(other.node(0).with_suffix(".pub"), keys.node(0).with_suffix(".pub"))
    keys.node(1).chmod(0o644)
    said = found(app, data, keys=keys.folder)
    assert said["client-0.key"].said == "client-0.pub is not its public key"
    assert "chmod 600" in said["client-1.key"].said
    keys.ca.write_text("no certificate")
    assert not found(app, data, keys=keys.folder)["ca.crt"].holds


def test_a_folder_that_is_no_app(app: Path, data: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="give the folder of a Flower app"):
        found(tmp_path, data)
    (app / "app.py").write_text("client = server = None")
    with pytest.raises(BadInput, match=r"has no fedmix\.flower\.Task"):
        found(app, data)
    (app / "app.py").write_text("import not_there")
    with pytest.raises(BadInput, match="cannot be loaded: No module named 'not_there'"):
        found(app, data)
    (app / "pyproject.toml").write_text("[project]")
    with pytest.raises(BadInput, match="names no clientapp"):
        found(app, data)


def test_the_command_says_all_and_then_fails(
    app: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = f"partition-id={{}} data={json.dumps(str(data))}"

    def run(*nodes: str, as_json: bool = False) -> None:
        config = f"data={json.dumps(str(data))}"
        federation.check(app, node=list(nodes), run_config=config, as_json=as_json)

    run(node.format(0))
    assert [line[:4] for line in capsys.readouterr().out.splitlines()] == ["ok  "] * 3
    with pytest.raises(BadInput, match="1 of these would fail"):
        run(node.format(7), node.format(1))
    marks = [line[:12] for line in capsys.readouterr().out.splitlines()]
    assert marks[2:] == ["FAIL client ", "ok   client "]
    with pytest.raises(BadInput, match="1 of these would fail"):
        run(node.format(7), node.format(1), as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert [one["holds"] for one in told] == [True, True, False, True]
    with pytest.raises(BadInput, match="is no configuration; write key=value"):
        run("partition-id=[1")
