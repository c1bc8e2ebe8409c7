"""FedYogi (Reddi et al. 2021, Algorithm 2): FedAdam whose second moment changes more slowly."""

from dataclasses import dataclass

from torch import Tensor

from fedmix.core.registry import SERVER_STEPS
from fedmix.server_steps.fedadam import FedAdam


@SERVER_STEPS.add("fedyogi", "Yogi on the server")
@dataclass(frozen=True)
class FedYogi(FedAdam):
    """FedAdam with another second moment: v ← v − (1−β2)·Δ²·sign(v − Δ²).

    `lr` is the server's learning rate. `beta1` is the decay of the first moment. `beta2` is the
    decay of the second moment. `tau` is added to √v: smaller values adapt more.
    """

    def second(self, v: Tensor, squared: Tensor) -> Tensor:
        return v - (1 - self.beta2) * squared * (v - squared).sign()
