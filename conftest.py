"""What all tests need: threads that do not spin, properties that are not timed, and those that wait
first.
"""

import os

import pytest
from hypothesis import settings

# Real federations mostly wait: others run beside them.
FIRST = ("test_trouble.py", "test_processes.py", "test_quickstart.py")

# Before torch is imported: spinning makes a busy machine ten times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
if "PYTEST_XDIST_WORKER" in os.environ:  # one of several processes, each with a core of its own
    os.environ.setdefault("OMP_NUM_THREADS", "1")
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in FIRST)
