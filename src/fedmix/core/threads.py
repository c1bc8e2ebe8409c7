"""How the threads of a CPU wait for each other, which a library reads when torch is first imported.

Threads that wait by spinning are a little faster on a machine with nothing else to do, and made a
busy one ten times slower and more. So they sleep, unless the user's environment says how they wait.
"""

import os
import sys
import warnings

from fedmix.core.errors import FedmixWarning

SAYS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")  # that the user has chosen
BUSY = 1.0  # other programs that compute, by the load of the last minute
_spins_beside_others = False


def wait_passively() -> None:
    """Let threads sleep while they wait, if torch is not imported and nobody chose otherwise."""
    global _spins_beside_others
    if any(name in os.environ for name in SAYS):
        return
    # the load is that of others still: this process has only begun
    _spins_beside_others = "torch" in sys.modules and os.getloadavg()[0] >= BUSY
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # also for processes that this one starts


def warn_of_spinning(threads: int) -> None:
    """Warn, once, if several threads spin while other programs use this machine."""
    global _spins_beside_others
    if _spins_beside_others and threads > 1:
        _spins_beside_others = False
        warnings.warn(
            "other programs use this machine, and torch was imported before fedmix, so its threads "
            "wait by spinning, which makes training many times slower then; import fedmix first, "
            "or set OMP_WAIT_POLICY=PASSIVE",
            FedmixWarning,
            stacklevel=3,  # the caller of Federation
        )
