"""Checks of what a loop gives to a loss; each mistake gets one sentence."""

from typing import Any

import torch
from torch import Tensor, nn

from fedmix.core.errors import BadInput, described
from fedmix.core.validation import instance


def check(net: Any, x: Any, y: Any, which: str = "") -> None:
    """Raise BadInput for what is no module, no inputs or no targets of them.

    Args:
        net: The module.
        x: The inputs.
        y: The targets.
        which: What stands before their names.
    """
    if not isinstance(net, nn.Module):
        raise BadInput(f"`net` is {described(net)}; give an nn.Module, and forward= to call it")
    for name, value in ((f"{which}x", x), (f"{which}y", y)):
        instance(name, value, Tensor, "give a tensor")
    if not x.is_floating_point():
        raise BadInput(
            f"{which}x is {_kind(x)}, which cannot be mixed by value; give floating-point inputs: "
            "pixels as float, token ids as one-hot vectors (fedmix.models.Embedding takes them) or "
            "as embeddings"
        )
    if x.ndim < 1 or not len(x) or len(y) != len(x):
        raise BadInput(
            f"{which}x has shape {tuple(x.shape)} and {which}y {tuple(y.shape)}; give one target "
            "for each sample, and one sample at least"
        )
    _together(x, **{f"{which}y": y})


def check_means(x: Tensor, mean_x: Any, mean_y: Any) -> None:
    """Raise BadInput for means that do not fit the inputs, or that are not finite."""
    for name, value in (("mean_x", mean_x), ("mean_y", mean_y)):
        instance(name, value, Tensor, "give what MeanPool.draw returns")
        if not value.is_floating_point():
            raise BadInput(f"{name} is {_kind(value)}; give floating-point means")
    if mean_x.shape not in (x.shape, (1, *x.shape[1:])):
        raise BadInput(
            f"mean_x has shape {tuple(mean_x.shape)} for inputs of shape {tuple(x.shape)}; give "
            f"{(1, *x.shape[1:])}, one mean for the batch, or one for each sample"
        )
    if mean_y.ndim != 2 or len(mean_y) != len(mean_x):
        raise BadInput(
            f"mean_y has shape {tuple(mean_y.shape)} for {len(mean_x)} mean inputs; give one label "
            "vector for each"
        )
    _together(x, mean_x=mean_x, mean_y=mean_y)
    if not (torch.isfinite(mean_x).all() & torch.isfinite(mean_y).all()):
        raise BadInput("these means hold NaN or infinity; leave out whoever sent them")


def outputs(out: Any, count: int) -> Tensor:
    """Return a model's outputs, one value per sample as (B, 1); raise BadInput for others.

    Args:
        out: What the model returns.
        count: The number of samples.
    """
    if not isinstance(out, Tensor):
        raise BadInput(
            f"the model returns a {type(out).__name__}; pick the tensor of its outputs, such as "
            "by forward=lambda net, x: net(x).logits"
        )
    if out.shape[:1] != (count,):
        raise BadInput(
            f"the model returns outputs of shape {tuple(out.shape)} for {count} samples; give one "
            "row for each"
        )
    return out[:, None] if out.ndim == 1 else out


def _together(x: Tensor, **others: Tensor) -> None:
    for name, other in others.items():
        if other.device != x.device:
            raise BadInput(
                f"{name} is on {other.device} and x on {x.device}; give both on one device"
            )


def _kind(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")
