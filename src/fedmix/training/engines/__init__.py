"""Engines map the same local update over clients: one by one (reference), all at once on one
device, or on several processes.
"""

from fedmix.training.engines.base import Engine, Work
from fedmix.training.engines.processes import Processes
from fedmix.training.engines.sequential import Sequential
from fedmix.training.engines.vectorised import Vectorised

__all__ = ["Engine", "Processes", "Sequential", "Vectorised", "Work"]
