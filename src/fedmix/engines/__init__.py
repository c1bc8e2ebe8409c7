"""Engines map the same local update over clients: one by one (reference) or all at once on one device."""

from fedmix.engines.base import Engine, Work
from fedmix.engines.sequential import Sequential
from fedmix.engines.vectorised import Vectorised

__all__ = ["Engine", "Sequential", "Vectorised", "Work"]
