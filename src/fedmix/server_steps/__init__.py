"""Server steps, which turn the clients' average into new weights: one file per rule."""

from fedmix.server_steps.base import ServerStep
from fedmix.server_steps.fedadam import FedAdam
from fedmix.server_steps.fedavg import FedAvg
from fedmix.server_steps.fedavgm import FedAvgM
from fedmix.server_steps.fedyogi import FedYogi

__all__ = ["FedAdam", "FedAvg", "FedAvgM", "FedYogi", "ServerStep"]
