"""The mean exchange: what clients release, the server's pool of it, and the bytes it takes."""

from fedmix.exchange.all_clients import Releases, release_all
from fedmix.exchange.one_client import Means, average, release, split_at_random, split_by_class
from fedmix.exchange.pool import Pool, build
from fedmix.exchange.settings import Exchange
from fedmix.exchange.state import MeanExchange, Traffic

__all__ = [
    "Exchange",
    "MeanExchange",
    "Means",
    "Pool",
    "Releases",
    "Traffic",
    "average",
    "build",
    "release",
    "release_all",
    "split_at_random",
    "split_by_class",
]
