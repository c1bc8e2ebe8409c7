"""Set before torch is imported: threads that wait by spinning make a busy machine ten times slower."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
