"""How a rank ends."""

import subprocess
import sys

import pytest

from tests.ranks.start import environment

SCRIPT = """
import atexit
from pathlib import Path
from torch import distributed as dist
def left():
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    print("group:", dist.is_initialized(), sum("gloo" in name for name in names))
atexit.register(left)
from fedmix.core.ranks import launched
print("ranks:", launched().count)
"""


@pytest.mark.parametrize(
    "more",
    ["", "dist.destroy_process_group()", "import torch.distributed.nn.functional"],
    ids=["", "ended by the script", "with what a compiler imports"],
)
def test_the_group_of_processes_ends_before_python_does(more: str) -> None:
    """Else its threads may need Python when it is gone, which aborts the process now and then."""
    group = {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT + more],
        env=environment() | group,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "ranks: 1\ngroup: False 0\n"), done.stderr
    assert "atexit" not in done.stderr
