"""Privacy of the exchanged means: what is guaranteed, and what attacks recover."""

from fedmix.privacy.accounting import Guarantee, calibrated, guarantee, sensitivity
from fedmix.privacy.of_run import guarantee_of

__all__ = ["Guarantee", "calibrated", "guarantee", "guarantee_of", "sensitivity"]
