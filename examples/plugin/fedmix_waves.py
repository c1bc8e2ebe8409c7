"""A package of its own that adds a data set, a model, an algorithm and a server step to fedmix.

After `pip install examples/plugin`, this runs: fedmix run waves --algorithm smoothed.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from fedmix import Objective, ServerStep
from fedmix.core.registry import DATA, MODELS, SERVER_STEPS
from fedmix.core.types import Batch, Params
from fedmix.data import FederatedData, from_arrays
from fedmix.data.preset import Preset
from fedmix.models import Model
from fedmix.objectives import batch_mean, objective


@DATA.add("waves", "sines of three frequencies, made up", preset=Preset("waves_net", 3, 2, 5))
def waves(clients: int = 6, *, seed: int = 0) -> FederatedData:
    """Noisy sines of 16 points; the class is the frequency."""
    rng, steps = np.random.default_rng(seed), np.linspace(0, 1, 16)
    y = rng.integers(0, 3, 360)
    x = np.sin(2 * np.pi * (y[:, None] + 1) * steps) + rng.normal(0, 0.3, (360, 16))
    rows = np.split(np.arange(300), clients)
    x = x.astype(np.float32)
    return from_arrays(x, y, clients=rows, test=(x[300:], y[300:]), classes=3, name="waves")


@MODELS.add("waves_net")
def waves_net(classes: int = 3) -> nn.Sequential:
    """Two layers for 16 points."""
    return nn.Sequential(nn.Sequential(nn.Linear(16, 24), nn.ReLU()), nn.Linear(24, classes))


@objective("smoothed", "cross entropy with smoothed labels")
@dataclass(frozen=True)
class Smoothed(Objective):
    """ℓ(f(x), (1 − s)·y + s / C)."""

    share: float = 0.1

    def __call__(self, model: Model, params: Params, anchor: Params, batch: Batch) -> Tensor:
        soft = (1 - self.share) * batch.y + self.share / batch.y.shape[-1]
        return batch_mean(model.loss(model(params, batch.x, batch.key), soft), batch.mask)


@SERVER_STEPS.add("half", "the server goes half the way to the clients' average")
@dataclass(frozen=True)
class Half(ServerStep):
    """w ← (w + Σ p_k w_k) / 2."""

    def __call__(self, state: Params, weights: Params, mean: Params) -> tuple[Params, Params]:
        return state, {name: (w + mean[name]) / 2 for name, w in weights.items()}
