"""Targets as vectors, and losses of them: checked, and linear in the target."""

from collections.abc import Callable
from inspect import isclass
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional as F

from fedmix.core.errors import BadInput, described, first_line
from fedmix.core.losses import Loss, PerSample, cross_entropy, is_linear, plain, squared_error
from fedmix.core.validation import shown

PerSampleLoss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
NAMED = {loss.name: loss for loss in (cross_entropy, squared_error)}
OFF = 0.01  # how far label shares may be from adding up to 1: 16-bit values round
_linear: WeakKeyDictionary[Any, set[tuple[int, ...]]] = WeakKeyDictionary()


class Targets:
    """The targets of a batch and of what it is mixed with, under a loss.

    Args:
        loss: The loss, as users give it.
        y: The samples' targets.
        other_y: Targets of the means or partners.
    """

    def __init__(self, loss: Any, y: Tensor, other_y: Tensor) -> None:
        self.y, self.other_y = y, other_y
        if isinstance(loss, str) and loss not in NAMED:
            raise BadInput(f"loss={shown(loss)} is unknown; choose one of {', '.join(NAMED)}")
        given: Any = NAMED[loss] if isinstance(loss, str) else loss or cross_entropy
        if not callable(given) or isclass(given):
            raise BadInput(
                f"`loss` is {described(loss)}; give a function of (outputs, targets), such as "
                "nn.CrossEntropyLoss(reduction='none')"
            )
        self.shares = isinstance(given, Loss) and plain(given) is cross_entropy.value
        self._value: PerSample = given.value if isinstance(given, Loss) else given

    def at(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return both targets as vectors of the shape of the outputs.

        Raises:
            BadInput: They are no targets for these outputs.
        """
        own = self._vectors("y", self.y, outputs)
        other = self._vectors("the means' label vectors", self.other_y, outputs)
        _check_linear(self._value, tuple(outputs.shape[1:]))
        return own, other.expand_as(outputs)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each sample, (B,); raise BadInput if it has another shape."""
        try:
            value = self._value(outputs, targets)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise BadInput(
                f"the loss {_name(self._value)} fails ({first_line(error)}); it gets outputs and "
                f"targets of one shape, here {tuple(outputs.shape)}: label vectors, not labels"
            ) from error
        if not isinstance(value, Tensor) or value.shape != outputs.shape[:1]:
            got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise BadInput(
                f"the loss gives {got} for {len(outputs)} samples; give one value per sample, as "
                "with reduction='none', summed over each sample's own outputs"
            )
        return value

    def _vectors(self, name: str, y: Tensor, outputs: Tensor) -> Tensor:
        width = outputs.shape[-1]
        if not y.is_floating_point():
            return _one_hot(name, y, outputs)
        if y.ndim == 1 and width == 1:
            y = y[:, None]
        if y.shape not in (outputs.shape, (1, *outputs.shape[1:])):
            raise BadInput(
                f"{name} {'have' if name.endswith('s') else 'has'} shape {tuple(y.shape)} for "
                f"outputs of shape {tuple(outputs.shape)}; give integer class labels, or vectors "
                f"of {width} values (for means: means_of(..., classes={width}))"
            )
        if self.shares:
            off = (y.sum(-1) - 1).abs() > OFF
            if bool((off | (y < -OFF).any(-1)).any()):
                raise BadInput(
                    f"{name} must not be negative and must add up to 1 in cross_entropy; give "
                    "labels, or loss='squared_error' for a regression"
                )
        return y.to(torch.promote_types(outputs.dtype, torch.float32))


def _one_hot(name: str, y: Tensor, outputs: Tensor) -> Tensor:
    """Class labels as one-hot vectors; raise BadInput if they are none."""
    width = outputs.shape[-1]
    if y.dtype == torch.bool or y.is_complex() or y.ndim != 1 or outputs.ndim != 2:
        raise BadInput(
            f"{name} of type {str(y.dtype).removeprefix('torch.')} and shape {tuple(y.shape)} are "
            f"no labels for outputs of shape {tuple(outputs.shape)}; give one integer per sample, "
            "or floating-point vectors of the outputs' shape"
        )
    if width == 1:
        raise BadInput(
            f"{name} has whole numbers and the model one output; for a regression give "
            "floating-point targets and loss='squared_error', for two classes two outputs"
        )
    low, high = (int(end) for end in torch.aminmax(y.long()))
    if low < 0 or high >= width:
        raise BadInput(f"{name} holds labels outside 0..{width - 1}, the model's {width} outputs")
    return F.one_hot(y.long(), width).to(torch.promote_types(outputs.dtype, torch.float32))


def _check_linear(value: PerSample, shape: tuple[int, ...]) -> None:
    """Raise BadInput for a loss for which a mean of targets cannot replace the targets."""
    if value in (loss.value for loss in NAMED.values()):
        return
    try:
        known = _linear.setdefault(value, set())
    except TypeError:  # no weak references to it
        known = set()
    if shape in known:
        return
    try:
        linear = is_linear(value, *shape)
    except Exception:  # a loss for other types or a GPU; its first call shows what is wrong
        return
    if not linear:
        raise BadInput(
            f"the loss {_name(value)} is not linear in its target, so that a mean of targets "
            "cannot stand for the targets; use 'cross_entropy', or 'squared_error', which has the "
            "gradients of ½‖z − y‖²"
        )
    known.add(shape)


def _name(loss: PerSample) -> str:
    return getattr(loss, "__name__", type(loss).__name__)
