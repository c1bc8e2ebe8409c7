"""Federated data: your own arrays, the paper's data sets, and ways to partition samples."""

from fedmix.data import partition
from fedmix.data.arrays import from_arrays
from fedmix.data.cifar import cifar10, cifar100
from fedmix.data.datasets import from_datasets
from fedmix.data.diabetes import diabetes
from fedmix.data.digits import digits
from fedmix.data.federated import FederatedData, HeldOut
from fedmix.data.femnist import femnist
from fedmix.data.per_party import alone, own
from fedmix.data.ragged import Ragged
from fedmix.data.shakespeare import shakespeare

__all__ = [
    "FederatedData",
    "HeldOut",
    "Ragged",
    "alone",
    "cifar10",
    "cifar100",
    "diabetes",
    "digits",
    "femnist",
    "from_arrays",
    "from_datasets",
    "own",
    "partition",
    "shakespeare",
]
