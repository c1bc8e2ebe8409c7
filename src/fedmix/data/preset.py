"""The settings that a data set comes with, for `fedmix run NAME`."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Preset(NamedTuple):
    """A model and settings for a data set; for the paper's, those of its appendix B.

    The paper gives N, K, E, B, λ, μ, the learning rate and its decay. It is silent about momentum;
    0.9 is used here, since without it mixing costs accuracy and iid clients end below the paper's
    (docs/reproduction/log.md).

    Args:
        model: its name.
        clients_per_round: K.
        epochs: E.
        rounds: how long to train: those of the paper's main table.
        target: the accuracy to count rounds to.
        naivemix_lam: λ of NaiveMix.
        fedmix_lam: λ of FedMix.
        mu: μ of FedProx.
        initialise: how the model's weights begin.
        data: settings of the data set.
    """

    model: str
    clients_per_round: int
    epochs: int
    rounds: int
    target: float | None = None
    naivemix_lam: float = 0.1
    fedmix_lam: float = 0.05
    mu: float = 0.1
    lr_decay: float = 0.999
    evaluate_every: int = 1
    hidden_layer: int = 2
    initialise: str = "he"
    data: Mapping[str, Any] = {}

    def lam(self, objective: str) -> dict[str, float]:
        """λ of an objective, as its settings."""
        known = {"naivemix": self.naivemix_lam, "fedmix": self.fedmix_lam}
        return {"lam": known[objective]} if objective in known else {}
