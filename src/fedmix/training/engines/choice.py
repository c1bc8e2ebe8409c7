"""How a run trains on a CPU if nobody says so: a rule of its work and the machine's cores.

It is a rule and no trial, so that the same experiment is trained the same way each time. To compile
a step takes 15 to 60 seconds with empty caches, and to start another process some five. Either pays
where it saves more than that, and what it saves in a local step is at least a millisecond: what
launching the step's many small kernels costs. The size of the model makes steps and compiling
longer alike, and decides nothing here. Of a recurrent model a compiler would write every time step,
which takes it many minutes, so that one is not compiled.
"""

from typing import NamedTuple

MANY = 50_000  # local steps, of all clients in all rounds: at a millisecond each, 50 seconds
FEWEST = 2  # clients of a process in a round; one by itself is not stacked, and rounds otherwise
MOST = 8  # processes; each takes some 300 MB, and more were not tried


class Choice(NamedTuple):
    """Whether to compile the local step, and the number of processes that share a round."""

    compile: bool
    processes: int


def choose(steps: int, clients: int, cores: int, *, recurrent: bool = False) -> Choice:
    """Choose how to train on a CPU.

    Only the number of processes depends on the machine, since it changes weights by rounding at
    most, and for most engines not at all.

    Args:
        steps: Local steps of all clients in the whole run.
        clients: Clients in a round.
        cores: Cores of this machine that may be used.
        recurrent: Whether the model goes through a sequence step by step.

    >>> choose(steps=8_000, clients=5, cores=8)
    Choice(compile=False, processes=1)
    >>> choose(steps=460_000, clients=10, cores=2)
    Choice(compile=True, processes=2)
    """
    if steps < MANY:
        return Choice(compile=False, processes=1)
    return Choice(not recurrent, max(1, min(cores, clients // FEWEST, MOST)))
