"""SCAFFOLD (Karimireddy et al. 2020, option II): control variates against clients' drift."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedmix.core.types import Batch, Params
from fedmix.models.functional import Model
from fedmix.objectives.algorithm import objective
from fedmix.objectives.base import ClientState, Needs, Objective
from fedmix.objectives.supervised import Supervised


@dataclass(frozen=True)
class ControlVariates(ClientState):
    """SCAFFOLD's control variates: c_k of each client, and c of the server.

    After S steps, c_k ← c_k − c + (w_round − w_k) / (η·S), and the server adds Σ Δc_k / N to c.
    With momentum, η·S becomes the sum of the factors with which the gradients entered the update,
    so that c_k is still a mean of the client's gradients.
    """

    def first(self, params: Params) -> tuple[Params, Params]:
        zeros = {name: torch.zeros_like(p) for name, p in params.items()}
        return zeros, zeros

    def after(
        self, kept: Params, shared: Params, anchor: Params, params: Params, moved: Tensor | float
    ) -> tuple[Params, Params]:
        drift = {name: (anchor[name] - params[name]) / moved - shared[name] for name in kept}
        return {name: kept[name] + drift[name] for name in kept}, drift


@dataclass(frozen=True)
class Scaffold(Objective):
    """A term with gradient c − c_k and value 0, which can be added to any objective.

    >>> from fedmix import Supervised
    >>> (Supervised() + Scaffold()).needs.state
    ControlVariates()
    """

    @property
    def needs(self) -> Needs:
        return Needs(state=ControlVariates())

    def __call__(self, model: Model, params: Params, anchor: Params, batch: Batch) -> Tensor:
        assert batch.kept is not None
        assert batch.shared is not None
        c, own = batch.shared, batch.kept
        slope = torch.stack([((c[n] - own[n]) * params[n]).sum() for n in model.names]).sum()
        return slope - slope.detach()


@objective("scaffold", "plain local training with control variates, which clients keep")
def scaffold() -> Objective:
    """FedAvg's objective with SCAFFOLD's control variates."""
    return Supervised() + Scaffold()
