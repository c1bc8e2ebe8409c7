"""Engines map the same local update over clients: one by one (reference), all at once on one device, or on several processes."""

from fedmix.engines.base import Engine, Work
from fedmix.engines.processes import Processes
from fedmix.engines.sequential import Sequential
from fedmix.engines.vectorised import Vectorised

__all__ = ["Engine", "Processes", "Sequential", "Vectorised", "Work"]
