"""The mean exchange: what clients release, what the server makes of it, and what it costs."""

from fedmix.exchange.accounting import Guarantee, calibrated, guarantee, sensitivity
from fedmix.exchange.means import Means, average, release, split_at_random, split_by_class
from fedmix.exchange.pool import Pool, build
from fedmix.exchange.releases import Releases, release_all
from fedmix.exchange.rounds import MeanExchange, Traffic
from fedmix.exchange.settings import Exchange

__all__ = [
    "Exchange",
    "Guarantee",
    "MeanExchange",
    "Means",
    "Pool",
    "Releases",
    "Traffic",
    "average",
    "build",
    "calibrated",
    "guarantee",
    "release",
    "release_all",
    "sensitivity",
    "split_at_random",
    "split_by_class",
]
