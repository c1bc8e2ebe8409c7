"""Objectives that clients minimise: one file per algorithm, added with `+`."""

from fedmix.objectives.algorithm import Algorithm, algorithm, objective
from fedmix.objectives.balance import Balance
from fedmix.objectives.base import ClientState, Needs, Objective, Phase, batch_mean
from fedmix.objectives.fedlc import FedLC
from fedmix.objectives.fedmix import FedMix
from fedmix.objectives.fedrs import FedRS
from fedmix.objectives.hidden import Hidden
from fedmix.objectives.meanmix import MeanMix
from fedmix.objectives.mixup import GlobalMix, LocalMix
from fedmix.objectives.naivemix import NaiveMix
from fedmix.objectives.proximal import Proximal
from fedmix.objectives.restrictedmix import RestrictedMix
from fedmix.objectives.scaffold import Scaffold
from fedmix.objectives.supervised import Supervised

__all__ = [
    "Algorithm",
    "Balance",
    "ClientState",
    "FedLC",
    "FedRS",
    "RestrictedMix",
    "Scaffold",
    "algorithm",
    "objective",
    "FedMix",
    "GlobalMix",
    "Hidden",
    "LocalMix",
    "MeanMix",
    "NaiveMix",
    "Needs",
    "Objective",
    "Phase",
    "Proximal",
    "Supervised",
    "batch_mean",
]
