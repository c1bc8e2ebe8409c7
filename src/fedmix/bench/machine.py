"""The machine and the versions that were measured, and when a device is done.

Paths and host names are left out, since results are meant to be published.
"""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from fedmix.core.devices import cores
from fedmix.runs.environment import cpu, environment


def about(device: torch.device, command: str) -> dict[str, Any]:
    """Command, time, commit, machine and versions, as written to a result's file."""
    known = environment(device, command)
    versions = {name: known[name] for name in ("fedmix", "python", "torch", "numpy")}
    if triton := _version("triton"):
        versions["triton"] = triton
    machine: dict[str, Any] = {"cpu": cpu(), "cores": cores(), "system": platform.system()}
    if device.type == "cuda":
        machine["gpu"] = torch.cuda.get_device_name(device)
    if policy := os.environ.get("OMP_WAIT_POLICY"):
        machine["omp_wait_policy"] = policy
    return {
        "command": command,
        "started": known["started"],
        "commit": known["commit"],
        "machine": machine,
        "versions": versions,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def wait(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
