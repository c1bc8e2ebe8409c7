"""Custom operators that a compiler treats as opaque and `vmap` runs for many clients at once.

The tensors of an operator have a leading axis of clients; `vmap` folds a mapped axis into it.
"""

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import TransformType
from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import get_proxy_mode


def operator(
    plain: Callable[..., Any], shapes: Callable[..., Any], cuda: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """Register `torch.ops.fedmix.<name of plain>`.

    `torch.library.custom_op` does the same, but runs much more Python at every call, and loads the
    compiler at the first one, needed or not.

    Args:
        plain: The implementation on any device.
        shapes: Function of the same arguments that makes empty results.
        cuda: The implementation on a GPU, if it has another.

    Returns:
        The operator.
    """
    name = plain.__name__.removeprefix("_")
    full = f"fedmix::{name}"
    torch.library.define(
        full,
        torch.library.infer_schema(plain, mutates_args=()),
        tags=(torch.Tag.pt2_compliant_tag,),
    )
    torch.library.impl(full, "default", plain)
    torch.library.register_fake(full, shapes)
    if cuda is not None:
        torch.library.impl(full, "cuda", cuda)
    op: Callable[..., Any] = getattr(torch.ops.fedmix, name).default
    torch.library.register_vmap(full, _over_clients(op))
    return op


@cache
def has_triton() -> bool:
    """Whether Triton can run kernels on this GPU; it builds its driver first, with a C compiler."""
    if find_spec("triton") is None:
        return False
    from triton.runtime import driver

    try:
        return driver.active is not None
    except Exception:  # no compiler, or no Python headers; the plain versions are used
        return False


def only_stacked() -> bool:
    """Whether `vmap` is all that is around: no other derivative but PyTorch's own, and no tracer.

    Then an `autograd.Function` with a rule for `vmap` needs no other rules.
    """
    around = retrieve_all_functorch_interpreters()
    return (
        bool(around)
        and all(one.key() == TransformType.Vmap for one in around)
        and get_proxy_mode() is None
        and forward_ad._current_level < 0
    )


def _over_clients(op: Callable[..., Any]) -> Callable[..., Any]:
    def rule(info: Any, dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        def folded(value: Any, dim: int | None) -> Any:
            if not isinstance(value, Tensor):
                return value
            mapped = (
                value.expand(info.batch_size, *value.shape)
                if dim is None
                else value.movedim(dim, 0)
            )
            return mapped.flatten(0, 1)

        result = op(*[folded(value, dim) for value, dim in zip(args, dims, strict=True)])
        if isinstance(result, Tensor):
            return result.unflatten(0, (info.batch_size, -1)), 0
        return tuple(r.unflatten(0, (info.batch_size, -1)) for r in result), (0,) * len(result)

    return rule
