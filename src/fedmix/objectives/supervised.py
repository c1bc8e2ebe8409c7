"""FedAvg's local objective (McMahan et al. 2017)."""

from dataclasses import dataclass

from torch import Tensor

from fedmix.core.types import Batch, Params
from fedmix.models.functional import Model
from fedmix.objectives.algorithm import Algorithm, algorithm, objective
from fedmix.objectives.base import Objective, batch_mean


@objective("fedavg", "plain local training")
@dataclass(frozen=True)
class Supervised(Objective):
    """The mean loss of a batch, mean_i ℓ(f(x_i), y_i)."""

    def __call__(self, model: Model, params: Params, anchor: Params, batch: Batch) -> Tensor:
        return batch_mean(model.loss(model(params, batch.x, batch.key), batch.y), batch.mask)


algorithm(
    "fedprox", "plain local training with FedProx's proximal term", Algorithm("fedavg", prox=True)
)
