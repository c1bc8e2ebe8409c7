"""How a rank ends."""

import subprocess
import sys

import pytest

from tests.ranks.start import environment

SCRIPT = """
import atexit
from torch import distributed as dist
atexit.register(lambda: print("group:", dist.is_initialized()))
from fedmix.core.ranks import launched
print("ranks:", launched().count)
"""


@pytest.mark.parametrize("ended", ["", "dist.destroy_process_group()"])
def test_the_group_of_processes_ends_before_python_does(ended: str) -> None:
    """Else its threads may need Python when it is gone, which aborts the process now and then.

    A script may have ended it already.
    """
    group = {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT + ended],
        env=environment() | group,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "ranks: 1\ngroup: False\n"), done.stderr
    assert "atexit" not in done.stderr
