"""Mixing of hidden states instead of inputs (the paper's appendix E, after Manifold Mixup)."""

from dataclasses import dataclass, replace

from torch import Tensor

from fedmix.core.errors import BadInput
from fedmix.core.types import Batch, Params
from fedmix.core.validation import instance, is_whole, shown
from fedmix.models.functional import Model
from fedmix.objectives.base import Needs, Objective, Phase
from fedmix.objectives.supervised import Supervised


@dataclass(frozen=True)
class Hidden(Objective):
    """Another objective applied to hidden states, followed by a plain step on all layers.

    `objective` sees the hidden states after `layer` layers and trains only the layers after these.
    Means of hidden states are computed with the round's global weights and sent every round. The
    layers before are not trained by the mixed loss, since the hidden states of others came from
    weights that no longer exist; the plain step trains them.

    Raises:
        BadInput: `objective` has several phases, or `layer` is not a positive whole number.
    """

    objective: Objective
    layer: int

    def __post_init__(self) -> None:
        instance(
            "objective",
            self.objective,
            Objective,
            "give Hidden an Objective, such as FedMix(lam=0.1)",
        )
        if not is_whole(self.layer):
            raise BadInput(
                f"Hidden: layer={shown(self.layer)}; hidden states exist after layer 1 or later, a "
                "whole number"
            )
        if len(self.objective.phases()) > 1:
            raise BadInput(
                "Hidden: its objective must be a single step; do not nest Hidden in Hidden"
            )

    @property
    def needs(self) -> Needs:
        return replace(self.objective.needs, layer=self.layer)

    def __call__(self, model: Model, params: Params, anchor: Params, batch: Batch) -> Tensor:
        encode, decode = model.head(self.layer), model.tail(self.layer)
        partner = None if batch.partner_x is None else encode(params, batch.partner_x, batch.key)
        hidden = batch._replace(x=encode(params, batch.x, batch.key), partner_x=partner)
        return self.objective(decode, params, anchor, hidden)

    def phases(self) -> tuple[Phase, ...]:
        return (Phase(self, self.layer), Phase(Supervised()))
