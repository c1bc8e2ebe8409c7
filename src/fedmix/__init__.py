"""Mean-augmented federated learning in PyTorch: FedMix and its relatives."""

from fedmix import data, exchange, losses, models
from fedmix.errors import BadInput, ClientFailure, DataError, FedmixError
from fedmix.exchange import Exchange
from fedmix.federation import Federation, Round
from fedmix.objectives import FedMix, GlobalMix, Hidden, LocalMix, NaiveMix, Objective, Proximal, Supervised
from fedmix.training import Training

__version__ = "0.1.0"

__all__ = [
    "BadInput",
    "ClientFailure",
    "DataError",
    "Exchange",
    "FedMix",
    "Federation",
    "FedmixError",
    "GlobalMix",
    "Hidden",
    "LocalMix",
    "NaiveMix",
    "Objective",
    "Proximal",
    "Round",
    "Supervised",
    "Training",
    "data",
    "exchange",
    "losses",
    "models",
]
