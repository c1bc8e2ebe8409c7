"""Privacy of what leaves clients: what is guaranteed, and what attacks recover."""

from fedmix.privacy.accounting import Guarantee, calibrated, guarantee, sensitivity
from fedmix.privacy.of_run import guarantee_of, whole_of
from fedmix.privacy.whole import NoisySums, Whole, least_multiplier

__all__ = [
    "Guarantee", "NoisySums", "Whole", "calibrated", "guarantee", "guarantee_of",
    "least_multiplier", "sensitivity", "whole_of",
]  # fmt: skip
