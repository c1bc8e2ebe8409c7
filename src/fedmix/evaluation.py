"""How good the global model is: on the pooled test set, and on each client's own."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmix.data.federated import FederatedData
from fedmix.errors import BadInput
from fedmix.models.functional import Model
from fedmix.types import Params

Array = np.ndarray[Any, Any]
CHUNK = 1000


@dataclass(frozen=True)
class ClientScores:
    """Score of the global model on each client's own test samples, beside its number of training samples."""

    samples: Array
    scores: Array

    def between(self, least: int, most: int) -> tuple[float, float, int]:
        """Mean and deviation over clients with `least` to `most` training samples, and how many these are."""
        chosen = self.scores[(self.samples >= least) & (self.samples <= most)]
        if not len(chosen):
            return float("nan"), float("nan"), 0
        return float(chosen.mean()), float(chosen.std()), len(chosen)


def per_sample(model: Model, params: Params, data: FederatedData, device: torch.device) -> tuple[Tensor, Tensor]:
    """Score and reported loss of every test sample."""
    scores, losses = [], []
    with torch.no_grad():
        for start in range(0, len(data.test_x), CHUNK):
            rows = slice(start, start + CHUNK)
            x = data.inputs(data.test_x[rows]).to(device)
            y = data.targets(torch.from_numpy(np.ascontiguousarray(data.test_y[rows]))).to(device)
            outputs = model(params, x)
            scores.append(model.loss.score(outputs, y))
            losses.append(model.loss.report(outputs, y))
    return torch.cat(scores).double(), torch.cat(losses).double()


def evaluate(model: Model, params: Params, data: FederatedData, device: torch.device) -> dict[str, float]:
    """The mean score (named by the loss) and loss over the pooled test set."""
    score, loss = per_sample(model, params, data, device)
    return {model.loss.score_name: float(score.mean()), "loss": float(loss.mean())}


def evaluate_clients(model: Model, params: Params, data: FederatedData, device: torch.device) -> ClientScores:
    """The score on every client's own test samples."""
    if data.test_clients is None:
        raise BadInput(f"{data.name}: its test samples belong to no client; only natural partitions can be evaluated by client")
    score = per_sample(model, params, data, device)[0].cpu().numpy()
    sums = np.add.reduceat(score[data.test_clients.flat], data.test_clients.offsets[:-1])  # nobody is without a test sample
    return ClientScores(data.clients.sizes, sums / data.test_clients.sizes)
