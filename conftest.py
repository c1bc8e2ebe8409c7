"""Set before torch is imported: threads that wait by spinning make a busy machine ten times slower."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
if "PYTEST_XDIST_WORKER" in os.environ:  # one of several processes, each with a core of its own
    os.environ.setdefault("OMP_NUM_THREADS", "1")
