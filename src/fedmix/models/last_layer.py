"""The linear layer that gives a model's outputs, and the features that it reads."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fedmix.core.errors import BadInput
from fedmix.core.types import Params
from fedmix.models.functional import Model


class LastLayer:
    """The last layer of a model, z = W·h + b, found by running it on some inputs.

    Args:
        model: The model.
        params: Its weights.
        x: Inputs, at least one.

    Attributes:
        weight: Name of W, (C, d).
        bias: Name of b, (C,).

    Raises:
        BadInput: The outputs are not those of an `nn.Linear` with a bias that is used once, on one
            vector for each sample.

    >>> model = Model(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    >>> last = LastLayer(model, model.init(), torch.zeros(5, 3))
    >>> last.weight, last.features(model.init(), torch.zeros(5, 3)).shape
    ('2.weight', torch.Size([5, 4]))
    """

    def __init__(self, model: Model, params: Params, x: Tensor) -> None:
        with torch.no_grad(), _heard(model._evaluating) as calls:
            outputs = model(params, x)
        if not calls:
            raise _refused("it has no nn.Linear")
        name, given, gave = calls[-1]
        self.model, self.layer = model, name
        places = dict(model._places)
        weight, bias = (places.get(f"{name}.{own}".lstrip(".")) for own in ("weight", "bias"))
        tied = [own for own in model._places if own[1] in (weight, bias)]
        if given.ndim != 2 or gave.shape != outputs.shape or not torch.equal(gave, outputs):
            raise _refused("its outputs are not those of its last nn.Linear, one vector a sample")
        if weight is None or bias is None:
            raise _refused("its last nn.Linear has no bias, or weights that are computed")
        if len(tied) > 2 or [n for n, *_ in calls].count(name) > 1:
            raise _refused("its last nn.Linear is used twice")
        self.weight, self.bias = weight, bias

    def features(self, params: Params, x: Tensor) -> Tensor:
        """Return what the last layer reads, (n, d), as in evaluation."""
        with torch.no_grad(), _heard(self.model._evaluating) as calls:
            self.model(params, x)
        return next(given for name, given, _ in reversed(calls) if name == self.layer)


def _refused(why: str) -> BadInput:
    return BadInput(
        "a head from statistics needs a model whose last layer is an nn.Linear with a bias: "
        f"{why}; end the model in one, or leave `head` out"
    )


@contextmanager
def _heard(module: nn.Module) -> Iterator[list[tuple[str, Tensor, Tensor]]]:
    """Note the calls of every linear layer: its name, what it reads and what it gives."""
    calls: list[tuple[str, Tensor, Tensor]] = []

    def noting(name: str) -> Any:
        return lambda _, given, gave: calls.append((name, given[0], gave))

    hooks = [
        layer.register_forward_hook(noting(name))
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear)
    ]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()
