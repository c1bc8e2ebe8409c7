"""Engines run the same local update for all clients: one by one, or many at once on a device."""

from fedmix.training.engines.base import Engine, Runner, Work
from fedmix.training.engines.sequential import Sequential
from fedmix.training.engines.vectorised import Vectorised

__all__ = ["Engine", "Runner", "Sequential", "Vectorised", "Work"]
