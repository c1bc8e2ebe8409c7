"""Engines map the same local update over clients: one by one, or all at once on one device."""

from fedmix.training.engines.base import Engine, Runner, Work
from fedmix.training.engines.sequential import Sequential
from fedmix.training.engines.vectorised import Vectorised

__all__ = ["Engine", "Runner", "Sequential", "Vectorised", "Work"]
