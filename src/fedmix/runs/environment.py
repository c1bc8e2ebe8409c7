"""Where something ran: versions, device, commit, command and time."""

import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from fedmix import __version__
from fedmix.core.errors import BadInput
from fedmix.core.files import parse_json, read_within

LARGEST = 1 << 20  # bytes of environment.json


def environment(device: torch.device, command: str) -> dict[str, str]:
    """Return the content of environment.json.

    Args:
        device: The device of the run.
        command: The command that started it; if empty, that of this process.
    """
    return {
        "fedmix": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "device": f"{device} ({_model(device)})",
        "commit": _commit(),
        "command": command or " ".join(sys.argv),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def known(folder: Path) -> dict[str, str]:
    """Return the content of a run folder's environment.json, of which no result depends.

    What cannot be read is left out.
    """
    try:
        said = parse_json(read_within(folder / "environment.json", LARGEST, "", links=False))
    except (BadInput, ValueError):
        return {}
    return {k: v for k, v in said.items() if isinstance(v, str)} if isinstance(said, dict) else {}


def _model(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{cpu()}, {threads} thread{'s' if threads > 1 else ''}"


def cpu() -> str:
    """Return the model name of the processor."""
    named = ""
    if sys.platform == "darwin":
        asked = subprocess.run(
            ["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True
        )
        named = asked.stdout.strip()
    elif Path("/proc/cpuinfo").is_file():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        named = next(
            (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), ""
        )
    return named or platform.machine()


def _commit() -> str:
    """Return the commit of the checkout that this package runs from; empty if there is none.

    An installed copy inside some other repository has none.
    """
    here = Path(__file__)
    try:
        for asked in (
            ["ls-files", "--error-unmatch", here.name],
            ["describe", "--always", "--dirty", "--abbrev=12"],
        ):
            said = subprocess.run(
                ["git", "-C", str(here.parent), *asked], capture_output=True, text=True, timeout=5
            )
            if said.returncode:
                return ""
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return said.stdout.strip()
