"""Operations whose second derivative PyTorch gets wrong or lacks, from plain operations.

Its formulas for the forward derivative of normalisations use the saved mean and variance as if they
were constants, so that the gradient of that derivative is wrong (its issue 196700).
"""

from collections.abc import Callable
from inspect import signature
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fedmix.models.layers import group_norm, layer_norm


class Differentiable(TorchFunctionMode):
    """While it is active, these operations are replaced by ones with right second derivatives."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.right.get(func, func)(*args, **(kwargs or {}))

    right: ClassVar[dict[Any, Callable[..., Tensor]]] = {}


def _as_native(y: Tensor, x: Tensor) -> Tensor:
    """Give a normalised tensor the type that PyTorch's own layer gives."""
    return y if torch.is_autocast_enabled(x.device.type) else y.to(x.dtype)


def _layer_norm(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    kwargs.pop("cudnn_enable", None)
    return _as_native(layer_norm(x, *args[:4], **kwargs), x)


def _instance_norm(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    given = signature(F.instance_norm).bind(x, *args, **kwargs)
    given.apply_defaults()
    how = given.arguments
    if not how["use_input_stats"]:
        return F.instance_norm(x, *args, **kwargs)
    variance, mean = torch.var_mean(x.flatten(2), 2)
    _follow(how["running_mean"], mean.mean(0), how["momentum"])
    _follow(how["running_var"], variance.mean(0), how["momentum"])
    return _as_native(group_norm(x, x.shape[1], how["weight"], how["bias"], how["eps"]), x)


def _batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if not training:
        return F.batch_norm(
            x, running_mean, running_var, weight, bias, training, momentum, eps
        )  # its statistics are constants
    over, count = [0, *range(2, x.ndim)], x.numel() // x.shape[1]
    if count == 1:
        raise ValueError(
            f"Expected more than 1 value per channel when training, got input size {x.shape}"
        )
    values = x.to(torch.promote_types(x.dtype, torch.float32))
    variance, mean = torch.var_mean(values, over, correction=0, keepdim=True)
    _follow(running_mean, mean, momentum)
    _follow(running_var, variance * (count / (count - 1)), momentum)
    y = (values - mean) * torch.rsqrt(variance + eps)
    shape = (x.shape[1], *[1] * (x.ndim - 2))
    y = y if weight is None else y * weight.view(shape)
    return (y if bias is None else y + bias.view(shape)).to(x.dtype)


def _follow(running: Tensor | None, now: Tensor, momentum: float) -> None:
    """Move a running statistic towards that of this batch."""
    if running is not None:
        with torch.no_grad():
            value: Tensor = forward_ad.unpack_dual(now).primal  # type: ignore[no-untyped-call]
            of_batch = value.detach().flatten().to(running.dtype)
            running.mul_(1 - momentum).add_(of_batch, alpha=momentum)


def _torch_batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,  # noqa: ARG001 - the argument that is not needed
) -> Tensor:
    return _batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)


def _hardsigmoid(x: Tensor, inplace: bool = False) -> Tensor:  # noqa: ARG001 - never in place
    return F.relu6(x + 3) / 6


Differentiable.right |= {
    F.layer_norm: _layer_norm,
    torch.layer_norm: _layer_norm,
    F.instance_norm: _instance_norm,
    F.batch_norm: _batch_norm,
    torch.batch_norm: _torch_batch_norm,
    F.hardsigmoid: _hardsigmoid,
}
