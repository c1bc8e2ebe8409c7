"""Evaluation of the global model on the pooled test set and on each client's own."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice, zip_longest

import numpy as np
import torch
from torch import Tensor

from fedmix.core.errors import BadInput, described
from fedmix.core.ranks import ALONE, Ranks
from fedmix.core.types import Array, Params
from fedmix.data.federated import FederatedData
from fedmix.data.numbers import to_tensor
from fedmix.kernels.precision import arithmetic
from fedmix.models.functional import Model

CHUNK = 1000
Metric = Callable[[Tensor, Tensor], float | Tensor | Mapping[str, float | Tensor]]
"""A function of all test outputs (n, C) and targets (n, C): a number, or numbers by name."""


@dataclass(frozen=True)
class ClientScores:
    """Score of the global model on each client's own test samples.

    `samples` are the clients' numbers of training samples.
    """

    samples: Array
    scores: Array

    def between(self, least: int, most: int) -> tuple[float, float, int]:
        """Summarise the clients with `least` to `most` training samples.

        Returns:
            The mean and standard deviation of their scores, which are NaN if there is none, and
            their number.
        """
        chosen = self.scores[(self.samples >= least) & (self.samples <= most)]
        if not len(chosen):
            return float("nan"), float("nan"), 0
        return float(chosen.mean()), float(chosen.std()), len(chosen)


@dataclass(frozen=True)
class ResidentTests:
    """A federation's test samples on one device, in their stored form."""

    data: FederatedData
    x: Tensor
    y: Tensor

    @staticmethod
    def on(device: torch.device, data: FederatedData) -> "ResidentTests":
        """Copy the test samples to a device."""
        x, y = (to_tensor(array).to(device) for array in (data.held_out.x, data.held_out.y))
        return ResidentTests(data, x, y)


def _outputs(
    model: Model, params: Params, tests: ResidentTests, ranks: Ranks = ALONE
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield outputs and targets of the test samples, in chunks; this rank's of several."""
    transform = tests.data.transform
    chunks = zip(torch.split(tests.x, CHUNK), torch.split(tests.y, CHUNK), strict=True)
    with torch.no_grad(), arithmetic("float32"):
        for x, y in islice(chunks, ranks.rank, None, ranks.count):
            yield model(params, transform.normalise(transform.units(x))), tests.data.targets(y)


def per_sample(
    model: Model, params: Params, tests: ResidentTests, ranks: Ranks = ALONE
) -> tuple[Tensor, Tensor]:
    """Return score and reported loss of every test sample; all ranks must call it."""
    with ranks.agreeing() as meeting:
        meeting.mine = [
            torch.stack([of(*pair).double() for of in (model.loss.score, model.loss.report)]).cpu()
            for pair in _outputs(model, params, tests, ranks)
        ]
    turns = chain.from_iterable(zip_longest(*meeting.all))
    scores, losses = torch.cat([part for part in turns if part is not None], 1)
    return scores, losses


def evaluate(
    model: Model,
    params: Params,
    tests: ResidentTests,
    metrics: Mapping[str, Metric] | None = None,
    ranks: Ranks = ALONE,
) -> dict[str, float]:
    """Return the mean score and loss over the pooled test set, and further metrics, by name.

    Args:
        model: The model, whose loss names the score.
        params: Its weights.
        tests: The test samples.
        metrics: Further metrics by name.
        ranks: The ranks among which the test samples are divided.

    Raises:
        BadInput: A metric returns something other than a number or numbers by name, or two of them
            return the same name.
    """
    score, loss = per_sample(model, params, tests, ranks)
    found = {model.loss.score_name: float(score.mean()), "loss": float(loss.mean())}
    if metrics:
        parts = zip(*_outputs(model, params, tests), strict=True)
        outputs, targets = (torch.cat(part) for part in parts)
        for name, metric in metrics.items():
            value = metric(outputs.clone(), targets.clone())  # it may change what it is given
            several = (
                {f"{name}.{k}": v for k, v in value.items()}
                if isinstance(value, Mapping)
                else {name: value}
            )
            try:
                numbers = {k: float(v) for k, v in several.items()}
            except (TypeError, ValueError, RuntimeError):
                raise BadInput(
                    f"metrics[{name!r}] gave a value {described(value)}; give a number, or numbers "
                    "by name"
                ) from None
            if twice := sorted(found.keys() & numbers.keys()):
                raise BadInput(
                    f"metrics[{name!r}] gave {twice[0]!r}, and so did another; rename one of them"
                )
            found |= numbers
    return found


def evaluate_clients(model: Model, params: Params, tests: ResidentTests) -> ClientScores:
    """Return the score on every client's own test samples.

    Raises:
        BadInput: The test samples do not belong to clients.
    """
    data = tests.data
    rows = data.held_out.clients
    if rows is None:
        raise BadInput(
            f"{data.name}: its test samples belong to no client; only natural partitions can be "
            "evaluated by client"
        )
    score = per_sample(model, params, tests)[0].cpu().numpy()
    sums = np.add.reduceat(score[rows.flat], rows.offsets[:-1])  # every client has a test sample
    return ClientScores(data.clients.sizes, sums / rows.sizes)
