"""A loss of a module's outputs and of their derivative along a direction.

The module is called once, as it is: in its mode, with its hooks, through its wrapper. Three ways
give the derivative: forward mode; the same below a dispatch mode, without which PyTorch's formula
for softmax cannot be differentiated again; and double backward. Before the first call with a
module, `_way_of` finds the first way that runs and whose gradient is that of double backward.
What PyTorch switches on for this, it switches on for the whole process, so threads take turns.
"""

import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from fedmix.core.errors import BadInput, FedmixWarning, first_line
from fedmix.core.rng import trial
from fedmix.functional.inputs import outputs
from fedmix.models.differentiable import Differentiable

Forward: TypeAlias = Callable[[nn.Module, Tensor], Tensor]
"""How a module is called."""
OfBoth: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""From outputs and their derivative, each (B, ...), to one value per sample, (B,)."""

DOUBLE = "double backward"
EXACT, ROUNDED = 0.01, 0.1  # how far two right gradients may be apart, of their size
_ways: WeakKeyDictionary[nn.Module, dict[Any, str]] = WeakKeyDictionary()
_turn = threading.RLock()


class Flat(BadInput):
    """The outputs have no derivative in the inputs."""

    def __init__(self) -> None:
        super().__init__(
            "the model's outputs have no derivative in its inputs, as if these were token ids; "
            "give it one-hot vectors or embeddings, and mix these"
        )


def mean_of_both(
    net: nn.Module, forward: Forward, x: Tensor, dx: Tensor, of_both: OfBoth
) -> Tensor:
    """Return the mean over the samples of `of_both(f(x), ∂f/∂x · dx)`.

    Args:
        net: The module.
        forward: Calls it.
        x: Its inputs, which nothing else uses, since the module may change them in place.
        dx: The direction, of the same shape.
        of_both: The loss of outputs and derivative.

    Raises:
        BadInput: The module has no such derivative, or no single tensor as output.
    """
    if torch.is_inference_mode_enabled():
        raise BadInput("fedmix_loss takes derivatives, which inference_mode forbids; use no_grad")
    # fused attention lacks these derivatives
    with _turn, _uncompiled(), sdpa_kernel(SDPBackend.MATH):
        known, what = _ways.setdefault(net, {}), _what(net, forward, x)
        way = known.get(what) or _way_of(net, forward, x)
        if way == DOUBLE:
            with torch.enable_grad():
                loss = _doubly(lambda at: forward(net, at), x, dx, of_both)
        else:
            loss = of_both(*_forward(lambda at: forward(net, at), x, dx, _MODES[way])).mean()
    known[what] = way  # now that it has worked
    return loss if torch.is_grad_enabled() else loss.detach()


def _what(net: nn.Module, forward: Forward, x: Tensor) -> Any:
    """What a module's way depends on: its layers and their modes, how it is called, and types."""
    layers = tuple((type(layer), layer.training) for layer in net.modules())
    code = getattr(forward, "__code__", None)  # that of a lambda, which may be made for every call
    return layers, code, x.dtype, torch.is_autocast_enabled(x.device.type)


class _OutOfPlace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Passes every operation on.

    While a dispatch mode is active, PyTorch's formulas change none of their values in place.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


_MODES: dict[str, Callable[[], Any]] = {
    "forward mode": nullcontext,
    "forward mode, out of place": _OutOfPlace,
}


def _forward(
    call: Callable[[Tensor], Tensor], x: Tensor, dx: Tensor, mode: Callable[[], Any]
) -> tuple[Tensor, Tensor]:
    """Return the outputs and their derivative, by forward mode."""
    with Differentiable(), mode(), forward_ad.dual_level():
        out = outputs(call(forward_ad.make_dual(x, dx)), len(x))  # type: ignore[no-untyped-call]
        value, tangent = forward_ad.unpack_dual(out)  # type: ignore[no-untyped-call]
        if tangent is None:
            raise Flat
        return value, tangent


def _doubly(call: Callable[[Tensor], Tensor], x: Tensor, dx: Tensor, of_both: OfBoth) -> Tensor:
    """Return the mean loss, by double backward.

    The derivative Jv is that of Jᵀu in u. Its value alone is used: with c and d, the gradients of
    the loss in the outputs f and in Jv, the loss has the gradient of c·f + d·Jv = c·f + (Jᵀd)·v,
    which takes second derivatives only.
    """
    at = x if x.requires_grad else x.detach().requires_grad_()
    with torch.backends.cudnn.flags(enabled=False):  # its recurrent layers have none
        out = outputs(call(at.clone()), len(x))  # the module may change its input in place
        try:
            if not out.requires_grad:
                raise Flat
            u = torch.zeros_like(out, requires_grad=True)
            (back,) = torch.autograd.grad(out, at, u, create_graph=True, allow_unused=True)
            if back is None:
                raise Flat
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


def _way_of(net: nn.Module, forward: Forward, x: Tensor) -> str:
    """Find the way for a module, by trying it on these inputs and a random direction.

    What the trial changes, buffers and random numbers, is put back. Processes that train together
    may find different ways, so nothing here is sent to the others.
    """
    if any(is_lazy(part) for part in (*net.parameters(), *net.buffers())):
        raise BadInput(
            "this module has lazy layers, whose weights are not there yet; call it once on a "
            "batch, and make the optimizer after that"
        )
    _warn_of_compiled(net)
    if any(layer._backward_hooks or layer._backward_pre_hooks for layer in net.modules()):
        warnings.warn(
            FedmixWarning(
                "this model has hooks on gradients, which fedmix_loss calls for the derivative "
                "along the means, too; if they change gradients they change the loss: take them off"
            ),
            stacklevel=4,
        )
    if isinstance(net, DistributedDataParallel):
        if net.static_graph:
            raise BadInput(
                "DistributedDataParallel(static_graph=True) sums wrong gradients where second "
                "derivatives are taken; leave static_graph out"
            )
        if net.find_unused_parameters:  # it puts an operation without forward mode at the end
            return DOUBLE
        net = net.module
    before = _State.of(net, x)
    dx = trial()(x.shape).to(x) * x.detach().square().mean().sqrt()
    for name, mode in _MODES.items():
        at = x.detach().clone().requires_grad_()
        try:
            with torch.enable_grad():
                value, tangent = _forward(lambda x: forward(net, x), at.clone(), dx, mode)
                if _agree(net, value, tangent, at, dx):
                    return name
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, Flat):  # no forward mode, or an error that comes again
            continue
        finally:
            before.restore(net)
    return DOUBLE


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

    def size(of: list[Tensor]) -> float:
        return sum(float(g.norm()) for g in of)

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
    # a gradient that is 0 but for rounding, such as that of a bias before batch normalisation
    least = 1e-3 * off * (size(theirs) + size(gradients((value * weights).sum())))
    return all(
        float((a - b).norm()) <= off * float(b.norm()) + least
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


def _uncompiled() -> Any:
    """Run compiled code as it was written: it has no second derivatives and no forward mode."""
    if "torch._dynamo" not in sys.modules:  # so nothing was compiled; the import would take long
        return nullcontext()
    error: Exception | None = None
    if not torch.compiler.is_dynamo_compiling():  # a trace of set_stance would fail at once
        try:
            return torch.compiler.set_stance("force_eager")
        except RuntimeError as inside:
            error = inside
    raise BadInput(
        "fedmix_loss cannot be compiled itself; compile the model alone, or call "
        "torch.compiler.disable(fedmix_loss)"
    ) from error


def _warn_of_compiled(net: nn.Module) -> None:
    if any(p._compiled_call_impl is not None or hasattr(p, "_orig_mod") for p in net.modules()):
        warnings.warn(
            FedmixWarning(
                "fedmix_loss runs this compiled model as it was written, since compiled code has "
                "no second derivatives; other losses and evaluation stay compiled"
            ),
            stacklevel=4,
        )
