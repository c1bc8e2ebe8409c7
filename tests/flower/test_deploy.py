"""deploy/: the image and the services, as far as they can be checked without a Docker engine."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SERVICES: dict[str, Any] = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["services"]


def test_the_image_installs_extras_that_there_are_from_files_that_there_are() -> None:
    dockerfile = (ROOT / "deploy/Dockerfile").read_text()
    [extras] = re.findall(r"'\.\[(.+)\]'", dockerfile)
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras.split(",")) <= set(known)
    for line in re.findall(r"^COPY (.+) \S+$", dockerfile, re.MULTILINE):
        assert all((ROOT / name).exists() for name in line.split())
    constraint = re.findall(r"--constraint (\S+)", dockerfile)
    assert constraint == ["constraints.txt"]


@pytest.mark.parametrize("program", ["flower-superlink", "flower-supernode"])
def test_services_use_options_that_flower_has(program: str) -> None:
    said = subprocess.run(
        [str(Path(sys.executable).parent / program), "--help"], capture_output=True, text=True
    ).stdout
    known = set(re.findall(r"--[a-z-]+", said))
    commands = [one["command"] for one in SERVICES.values() if one["command"][0] == program]
    assert commands
    for command in commands:
        assert {part.partition("=")[0] for part in command[1:]} <= known


def test_each_client_has_its_own_number_key_and_data_and_no_other() -> None:
    nodes = [name for name in SERVICES if name.startswith("node-")]
    assert nodes == ["node-0", "node-1"]
    for number, name in enumerate(nodes):
        [config] = [part for part in SERVICES[name]["command"] if "--node-config" in part]
        pairs = dict(pair.split("=") for pair in shlex.split(config.removeprefix("--node-config=")))
        assert pairs["partition-id"] == str(number)
        mounted = {line.split(":")[1]: line.split(":")[0] for line in SERVICES[name]["volumes"]}
        assert mounted["/keys/client.key"] == f"../keys/client-{number}.key"
        assert mounted["/data"] == f"../data/client-{number}"
        assert mounted["/state"] == f"ledger-{number}"  # which a restart must not forget
        read_only = [line for line in SERVICES[name]["volumes"] if line.endswith(":ro")]
        assert len(read_only) == len(mounted) - 1
        assert set(mounted) == {
            "/keys/ca.crt", "/keys/client.key", "/data", "/policy.toml", "/state"
        }  # fmt: skip


def test_the_servers_key_is_on_the_server_alone() -> None:
    holding = [name for name, one in SERVICES.items() if "server.key" in str(one["volumes"])]
    assert holding == ["superlink"]
