"""What all tests need: threads that do not spin, and properties that are not timed."""

import os

from hypothesis import settings

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch is imported: spinning makes a busy machine ten times slower
if "PYTEST_XDIST_WORKER" in os.environ:  # one of several processes, each with a core of its own
    os.environ.setdefault("OMP_NUM_THREADS", "1")
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
