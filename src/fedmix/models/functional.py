"""Modules as pure functions of their parameters, for objectives and engines."""

import copy
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.dropout import _DropoutNd

from fedmix.core.errors import BadInput, described, first_line
from fedmix.core.losses import Loss, cross_entropy
from fedmix.core.types import Params
from fedmix.models.along import Along
from fedmix.models.layers import (
    LSTM,
    Attention,
    Conv2d,
    GroupNorm,
    KeyedDropout,
    LayerNorm,
    Linear,
    Lookup,
    MaxPool2d,
)

_REFUSED: tuple[tuple[type, str], ...] = (
    (
        nn.modules.batchnorm._BatchNorm,
        "keeps statistics of whole batches, which clients cannot share; "
        "fedmix.models.group_norm(module) puts nn.GroupNorm in its place",
    ),
    (nn.RNNBase, "has no forward-mode derivative; use fedmix.models.LSTM"),
    (
        nn.modules.lazy.LazyModuleMixin,
        "has no weights yet; call the module once with a batch of inputs",
    ),
    (nn.AlphaDropout, "draws random numbers of its own; use nn.Dropout"),
    (nn.FeatureAlphaDropout, "draws random numbers of its own; use nn.Dropout"),
)
DROPOUTS = [kind.forward for kind in (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)]


class Model:
    """A module as a pure function: `model(params, x, key)`; with `key=None` as in evaluation.

    The module is copied and never changed. In the copy, dropout layers are replaced by ones whose
    masks are hashed from `key`, so that a step gives the same result alone, vectorised and on any
    device (a layer that is called twice drops the same elements twice). Convolutions, linear layers
    and max-pools are replaced by faster ones that compute the same. An `nn.Sequential` can be cut
    at a layer: `head(k)` is its first k children, `tail(k)` the rest.

    Args:
        module: The module; an instance, not a class.
        loss: The loss that objectives minimise.

    Raises:
        BadInput: The module has a layer that cannot be trained here, such as batch normalisation.

    >>> model = Model(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    >>> model(model.init(), torch.zeros(5, 3)).shape
    torch.Size([5, 2])
    """

    def __init__(self, module: nn.Module, loss: Loss = cross_entropy) -> None:
        if not isinstance(module, nn.Module):
            raise BadInput(
                f"the model is {described(module)}; give an instance of an nn.Module: Net() "
                "instead of Net"
            )
        for name, part in module.named_modules():
            for reason in _objections(part):
                where = f"layer {name!r} " if name else "it "
                raise BadInput(
                    f"this model cannot be trained here: {where}({type(part).__name__}) {reason}"
                )
        for where in _unregistered(module):
            raise BadInput(
                f"this model cannot be trained here: it keeps weights in {where!r}, a list or dict "
                "in which nothing would train them; make it an nn.ModuleList, nn.ModuleDict or "
                "nn.ParameterList, or freeze them by requires_grad_(False)"
            )
        try:
            training, evaluating = copy.deepcopy(module), copy.deepcopy(module)
        except (RuntimeError, TypeError) as error:
            raise BadInput(
                f"the model cannot be copied: {first_line(error)}; weights that a hook computes, "
                "as torch.nn.utils.weight_norm's, go by torch.nn.utils.parametrizations"
            ) from error
        # evaluation has one set of weights, for which PyTorch's own layers are faster
        _exchange_classes(evaluating, Lookup)
        self._setup(_prepared(training).train(), evaluating.eval(), loss)

    def _setup(self, training: nn.Module, evaluating: nn.Module, loss: Loss) -> None:
        self.module, self._evaluating, self.loss = training, evaluating, loss
        self._keys = [
            f"{name}.key"
            for name, part in training.named_modules()
            if isinstance(part, KeyedDropout)
        ]
        self._buffers = {name: b for name, b in training.named_buffers() if name not in self._keys}
        first = {id(p): name for name, p in training.named_parameters()}
        # Places of every parameter: tied parameters have several; a layer used twice is one place.
        self._places = [
            (f"{name}.{own}".lstrip("."), first[id(p)])
            for name, part in training.named_modules()
            for own, p in part._parameters.items() if p is not None
        ]  # fmt: skip
        self._along = Along(training)
        self._cuts: dict[tuple[int | None, int | None], Model] = {}
        self.names = tuple(name for name, _ in training.named_parameters())
        self.recurrent = any(isinstance(part, LSTM) for part in training.modules())
        self.trained = tuple(name for name, p in training.named_parameters() if p.requires_grad)

    def init(self) -> Params:
        """Copy the parameters that the module came with."""
        return {name: p.detach().clone() for name, p in self.module.named_parameters()}

    def to(self, where: torch.device | torch.dtype) -> "Model":
        """Copy the model, with its buffers, to another device or another floating-point type."""
        moved = copy.copy(self)
        training, evaluating = (copy.deepcopy(m).to(where) for m in (self.module, self._evaluating))
        moved._setup(training, evaluating, self.loss.to(where))
        return moved

    def __call__(self, params: Params, x: Tensor, key: Tensor | None = None) -> Tensor:
        """Return the outputs for a batch.

        Args:
            params: The parameters, by name.
            x: Inputs of the module.
            key: Dropout key of the step, an integer tensor; None to evaluate, without dropout.
        """
        if key is None:
            return _call(self._evaluating, self._own(params), x)  # type: ignore[no-any-return]
        return _call(self.module, self._own(params) | dict.fromkeys(self._keys, key), x)  # type: ignore[no-any-return]

    def _own(self, params: Params) -> dict[str, Tensor]:
        return {place: params[name] for place, name in self._places} | self._buffers

    def of_original(self, module: nn.Module, params: Params, x: Tensor) -> Tensor:
        """What the module that this model is a copy of gives with these parameters."""
        changed = _exchange_classes(module, Lookup)
        try:
            return _call(module, self._own(params), x)  # type: ignore[no-any-return]
        finally:
            for part in changed:
                part.__class__ = nn.Embedding

    def along(
        self, params: Params, x: Tensor, direction: Tensor, key: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return `model(params, x, key)` and its derivative ∂f/∂x · direction.

        `direction` has one entry for each sample, or one for all.
        """
        own = self._own(params) | dict.fromkeys(self._keys, key)
        value, derivative = _call(
            self._along, {f"module.{n}": t for n, t in own.items()}, x, direction
        )
        return value, derivative

    def head(self, layer: int) -> "Model":
        """The model up to layer `layer`: its first `layer` children.

        Raises BadInput if the module is no `nn.Sequential` or has no such layer.
        """
        return self._cut(None, self._layer(layer))

    def tail(self, layer: int) -> "Model":
        """The model from layer `layer` on; `tail(0)` is the whole.

        Raises BadInput if the module is no `nn.Sequential` or has no such layer.
        """
        return self._cut(self._layer(layer), None) if layer else self

    def _layer(self, layer: int) -> int:
        if (
            not isinstance(self.module, nn.Sequential)
            or _forward(self.module) is not nn.Sequential.forward
        ):
            raise BadInput(
                f"a {type(self.module).__name__} cannot start from layer {layer}; hidden-state "
                "mixing needs an nn.Sequential"
            )
        if not 0 < layer < len(self.module):
            raise BadInput(
                f"layer {layer} is not inside this model; choose 1..{len(self.module) - 1}"
            )
        return layer

    def _cut(self, start: int | None, stop: int | None) -> "Model":
        if (start, stop) not in self._cuts:
            cut = copy.copy(self)
            part = slice(start, stop)
            cut._setup(_children(self.module, part), _children(self._evaluating, part), self.loss)
            tied = set(cut.names) - set(self.names)
            if tied:
                raise BadInput(
                    f"the model cannot be cut at layer {start}: {min(tied)!r} is tied to a weight "
                    "before the cut"
                )
            self._cuts[start, stop] = cut
        return self._cuts[start, stop]


def _children(module: nn.Module, part: slice) -> nn.Sequential:
    # named_children() would skip an object that is there twice, such as one ReLU in two places
    return nn.Sequential(
        OrderedDict(list(module._modules.items())[part])  # type: ignore[arg-type]
    ).train(module.training)


def _forward(module: nn.Module) -> Any:
    """The function that a call of the module runs."""
    return getattr(module.forward, "__func__", module.forward)


def _call(module: nn.Module, tensors: dict[str, Tensor], *args: Tensor) -> Any:
    # with tie_weights, a layer that is there twice would get the same tensor twice, and keep it
    return functional_call(module, tensors, args, tie_weights=False)


def _objections(part: nn.Module) -> Iterator[str]:
    """Yield the reasons why a layer cannot be trained here."""
    yield from (reason for kind, reason in _REFUSED if isinstance(part, kind))
    names = ("_backward_hooks", "_backward_pre_hooks", "_post_accumulate_grad_hooks")
    if any(
        getattr(one, name, None) for one in (part, *part._parameters.values()) for name in names
    ):
        yield "has a hook on its gradients, which would never run; take it off"
    own = isinstance(part, nn.MultiheadAttention) and part.dropout > 0
    if own and not Attention.can_replace(part):
        yield (
            "drops attention by random numbers of its own; set its `dropout` to 0, or make it an "
            "nn.MultiheadAttention without add_bias_kv and add_zero_attn"
        )
    if isinstance(part, nn.Embedding | nn.EmbeddingBag):
        if part.max_norm is not None:
            yield "changes its weights whenever it is called; leave max_norm out"
        if part.sparse:
            yield "has sparse gradients, which clients cannot step by; leave sparse out"
    for p in part._parameters.values():
        if p is not None and not p.is_floating_point():
            kind = str(p.dtype).removeprefix("torch.")
            yield f"has {kind} parameters, which cannot be averaged; hold them as floats or buffers"
        if p is not None and p.is_meta:
            yield "has no values, since it is on the device 'meta'; make the module on the CPU"


def _unregistered(module: nn.Module) -> Iterator[str]:
    """Yield attributes that hold trainable weights where PyTorch does not find them."""
    found, usual = {id(p) for p in module.parameters()}, vars(nn.Module())
    for name, part in module.named_modules():
        for own, value in vars(part).items():
            if own in usual or not isinstance(value, list | tuple | dict):
                continue
            held = value.values() if isinstance(value, dict) else value
            inside = [
                p
                for one in held
                if isinstance(one, nn.Module | nn.Parameter)
                for p in (one.parameters() if isinstance(one, nn.Module) else [one])
            ]
            if any(p.requires_grad and id(p) not in found for p in inside):
                yield f"{name}.{own}".lstrip(".")


def _prepared(module: nn.Module) -> nn.Module:
    """Replace layers by those of this package, in place; layers that share an object too."""
    site = 0
    for parent in list(module.modules()):
        for name, child in list(parent._modules.items()):
            if isinstance(child, _DropoutNd) and _forward(child) in DROPOUTS:
                keyed = KeyedDropout(
                    child.p, site, whole_channels=not isinstance(child, nn.Dropout)
                )
                # its hooks
                vars(keyed).update(
                    {n: v for n, v in vars(child).items() if n.startswith("_forward_")}
                )
                setattr(parent, name, keyed)
                site += 1
    for attention in _exchange_classes(module, Attention):
        attention.dropped = KeyedDropout(float(attention.dropout), site)  # type: ignore[arg-type]
        site += 1
    for ours in (Conv2d, GroupNorm, LayerNorm, Linear, Lookup, MaxPool2d):
        _exchange_classes(module, ours)
    return module


def _exchange_classes(module: nn.Module, ours: Any) -> list[nn.Module]:
    """Give layers that `ours` can replace another forward, in place; return them."""
    inner = list(module.modules())[1:]
    found = [part for part in inner if ours.can_replace(part)]
    for part in found:
        part.__class__ = ours  # the same parameters
    return found
