"""A loss of a module's outputs and of their derivative along a direction.

The module is called once, as it is: in its mode, with its hooks, through its wrapper. Three ways
give the derivative: forward mode; the same below a dispatch mode, without which PyTorch's formula
for softmax cannot be differentiated again; and double backward. The first call with a module finds
the first way that runs and whose gradient is that of the textbook's double backward, on that very
batch. Later calls take that way at once.
"""

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.forward_ad import dual_level, make_dual, unpack_dual
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from fedmix.core.errors import BadInput, FedmixWarning, first_line
from fedmix.core.rng import trial
from fedmix.models.differentiable import Differentiable

Call: TypeAlias = Callable[[Tensor], Tensor]
OfBoth: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""From outputs and their derivative, each (B, ...), to one value per sample, (B,)."""

EXACT, ROUNDED = 0.01, 0.1  # how far two right gradients may be apart, of their size
_chosen: WeakKeyDictionary[nn.Module, dict[bool, str]] = WeakKeyDictionary()


def mean_of_both(net: nn.Module, call: Call, x: Tensor, dx: Tensor, of_both: OfBoth) -> Tensor:
    """Return the mean over the samples of `of_both(f(x), ∂f/∂x · dx)`.

    Args:
        net: The module; what was found out about it is remembered.
        call: Calls it.
        x: Its inputs, which nothing else uses, since the module may change them in place.
        dx: The direction, of the same shape.
        of_both: The loss of outputs and derivative.

    Raises:
        BadInput: The module has no such derivative, or no single tensor as output.
    """
    ways = _chosen.setdefault(net, {})
    with _uncompiled():
        if net.training not in ways:
            _warn_of_compiled(net)
            with torch.enable_grad():
                ways[net.training], loss = _first(net, call, x, dx, of_both)
        elif (way := ways[net.training]) == "double backward":
            with torch.enable_grad():
                loss = _doubly(call, x, dx, of_both)
        else:
            loss = of_both(*_forward(call, x, dx, _MODES[way])).mean()
    return loss if torch.is_grad_enabled() else loss.detach()


class _OutOfPlace(TorchDispatchMode):
    """Passes every operation on.

    While a dispatch mode is active, PyTorch's formulas change none of their values in place.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


_MODES: dict[str, Callable[[], Any]] = {
    "forward mode": nullcontext,
    "forward mode, out of place": _OutOfPlace,
}


def _forward(call: Call, x: Tensor, dx: Tensor, mode: Callable[[], Any]) -> tuple[Tensor, Tensor]:
    """Return the outputs and their derivative, by forward mode."""
    with _differentiable(), mode(), dual_level():
        value, tangent = unpack_dual(_checked(call(make_dual(x, dx))))
        if tangent is None:
            raise _flat()
        return value, tangent


def _doubly(call: Call, x: Tensor, dx: Tensor, of_both: OfBoth) -> Tensor:
    """Return the mean loss, by double backward.

    The derivative Jv is that of Jᵀu in u. Its value alone is used: with c and d, the gradients of
    the loss in the outputs f and in Jv, the loss has the gradient of c·f + d·Jv = c·f + (Jᵀd)·v,
    which takes second derivatives only.
    """
    at = x if x.requires_grad else x.detach().requires_grad_()
    with sdpa_kernel(SDPBackend.MATH), torch.backends.cudnn.flags(enabled=False):
        out = _checked(call(at.clone()))  # the module may change its input in place
        try:
            if not out.requires_grad:
                raise _flat()
            u = torch.zeros_like(out, requires_grad=True)
            (back,) = torch.autograd.grad(out, at, u, create_graph=True, allow_unused=True)
            if back is None:
                raise _flat()
            (tangent,) = torch.autograd.grad(back, u, dx)
            value, slope = out.detach().requires_grad_(), tangent.detach().requires_grad_()
            total = of_both(value, slope).sum()
            c, d = torch.autograd.grad(total, (value, slope), materialize_grads=True)
            (back,) = torch.autograd.grad(out, at, d, create_graph=True)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise BadInput(
                "fedmix_loss needs this model's derivative and its gradient, and PyTorch has none "
                f"({first_line(error)}); replace that operation, or use naivemix_loss"
            ) from error
        linear = (c * out).sum() + (back * dx).sum()
        return (total.detach() + linear - linear.detach()) / len(x)


def _first(
    net: nn.Module, call: Call, x: Tensor, dx: Tensor, of_both: OfBoth
) -> tuple[str, Tensor]:
    """Find the way for this module; return its name and the loss."""
    before = _State.of(net, x)
    for name, mode in _MODES.items():
        at = x.clone() if x.requires_grad else x.detach().clone().requires_grad_()
        try:
            value, tangent = _forward(call, at.clone(), dx, mode)
            right = _agree(net, value, tangent, at, dx)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # an operation without forward mode, or an error that comes again
            right = False
        if right:
            return name, of_both(value, tangent).mean()
        before.restore(net)
    return "double backward", _doubly(call, x, dx, of_both)


def _agree(net: nn.Module, value: Tensor, tangent: Tensor, at: Tensor, dx: Tensor) -> bool:
    """Whether a derivative has the gradient that double backward gives.

    Raises RuntimeError if it has none.
    """
    towards = [at, *(p for p in net.parameters() if p.requires_grad)]
    weights = trial()(value.shape).to(value)

    def gradients(of: Tensor) -> list[Tensor]:
        if not of.requires_grad:
            return [torch.zeros_like(p) for p in towards]
        found = torch.autograd.grad(of, towards, retain_graph=True, materialize_grads=True)
        return [g.to(torch.promote_types(g.dtype, torch.float32)) for g in found]

    mine = gradients((tangent * weights).sum())
    try:
        (back,) = torch.autograd.grad((value * weights).sum(), at, create_graph=True)
        theirs = gradients((back * dx).sum())
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:  # forward mode is all there is
        return True
    rounded = value.dtype.itemsize < 4 or torch.is_autocast_enabled(value.device.type)
    off = ROUNDED if rounded else EXACT
    total = sum(float(g.norm()) for g in theirs)
    return all(
        float((a - b).norm()) <= off * (float(b.norm()) + 0.01 * total) + 1e-12
        for a, b in zip(mine, theirs, strict=True)
    )


class _State(NamedTuple):
    """What a call of a module changes: its buffers, and the random numbers that follow."""

    buffers: dict[str, Tensor]
    cpu: Tensor
    gpu: Tensor | None
    device: torch.device

    @staticmethod
    def of(net: nn.Module, x: Tensor) -> "_State":
        buffers = {name: b.clone() for name, b in net.named_buffers()}
        gpu = torch.cuda.get_rng_state(x.device) if x.is_cuda else None
        return _State(buffers, torch.get_rng_state(), gpu, x.device)

    def restore(self, net: nn.Module) -> None:
        with torch.no_grad():
            for name, buffer in net.named_buffers():
                if name in self.buffers:
                    buffer.copy_(self.buffers[name])
        torch.set_rng_state(self.cpu)
        if self.gpu is not None:
            torch.cuda.set_rng_state(self.gpu, self.device)


@contextmanager
def _differentiable() -> Iterator[None]:
    """Use only operations that have right second derivatives.

    Fused attention has no forward mode.
    """
    with sdpa_kernel(SDPBackend.MATH), Differentiable():
        yield


def _uncompiled() -> Any:
    """Run compiled code as it was written: it has no second derivatives and no forward mode."""
    if "torch._dynamo" not in sys.modules:  # so nothing was compiled; the import would take long
        return nullcontext()
    return torch.compiler.set_stance("force_eager")


def _warn_of_compiled(net: nn.Module) -> None:
    if any(
        part._compiled_call_impl is not None or hasattr(part, "_orig_mod") for part in net.modules()
    ):
        warnings.warn(
            FedmixWarning(
                "fedmix_loss runs this compiled model as it was written, since compiled code has "
                "no second derivatives; other losses and evaluation stay compiled"
            ),
            stacklevel=5,
        )


def _checked(out: Any) -> Tensor:
    if not isinstance(out, Tensor):
        raise BadInput(
            f"the model returns a {type(out).__name__}; pick the tensor of its outputs, such as "
            "by forward=lambda net, x: net(x).logits"
        )
    return out


def _flat() -> BadInput:
    return BadInput(
        "the model's outputs have no derivative in its inputs, as if these were token ids; give it "
        "one-hot vectors or embeddings, and mix these"
    )
