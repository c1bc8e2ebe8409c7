"""A module as a pure function of its parameters: what objectives and engines call."""

import copy
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.dropout import _DropoutNd

from fedmix.core.errors import BadInput, described, first_line
from fedmix.core.losses import Loss, cross_entropy, squared_error
from fedmix.core.rng import trial
from fedmix.core.types import Params
from fedmix.data.federated import FederatedData
from fedmix.models.along import Along
from fedmix.models.layers import Conv2d, GroupNorm, KeyedDropout, LayerNorm, Linear, MaxPool2d

_REFUSED: tuple[tuple[type, str], ...] = (
    (
        nn.modules.batchnorm._BatchNorm,
        "keeps statistics of whole batches, which clients cannot share; use nn.GroupNorm or no "
        "normalisation",
    ),
    (nn.RNNBase, "has no forward-mode derivative; use fedmix.models.LSTM"),
    (
        nn.modules.lazy.LazyModuleMixin,
        "has no weights yet; call the module once with a batch of inputs",
    ),
    (nn.AlphaDropout, "draws random numbers of its own; use nn.Dropout"),
    (nn.FeatureAlphaDropout, "draws random numbers of its own; use nn.Dropout"),
)
FEW = 8  # samples that a transform is tried with
DROPOUTS = [kind.forward for kind in (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)]


class Model:
    """`model(params, x, key)` runs the module with these parameters; with `key=None` as in
    evaluation (no dropout).

    The module itself is copied and never changed. In the copy, dropout layers are replaced by ones
    whose masks are hashed from `key`, so that a step gives the same result alone, vectorised and on
    any device (one that is called twice drops the same twice); convolutions, full layers and
    max-pools are replaced by faster ones that compute the same. An `nn.Sequential` can be cut at a
    layer: `head(k)` is its first k children, `tail(k)` the rest.

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
        # Evaluation has one set of weights, for which PyTorch's own layers are the fast ones.
        self._setup(_prepared(copy.deepcopy(module)).train(), copy.deepcopy(module).eval(), loss)

    def _setup(self, training: nn.Module, evaluating: nn.Module, loss: Loss) -> None:
        self.module, self._evaluating, self.loss = training, evaluating, loss
        self._keys = [
            f"{name}.key"
            for name, part in training.named_modules()
            if isinstance(part, KeyedDropout)
        ]
        self._buffers = {name: b for name, b in training.named_buffers() if name not in self._keys}
        first = {id(p): name for name, p in training.named_parameters()}
        # of every parameter: tied ones have several, and a layer that is there twice is one place
        self._places = [
            (f"{name}.{own}".lstrip("."), first[id(p)])
            for name, part in training.named_modules() for own, p in part._parameters.items() if p is not None
        ]  # fmt: skip
        self._along = Along(training)
        self._cuts: dict[tuple[int | None, int | None], Model] = {}
        self.names = tuple(name for name, _ in training.named_parameters())
        self.trained = tuple(name for name, p in training.named_parameters() if p.requires_grad)

    def init(self) -> Params:
        """A fresh copy of the parameters the module came with."""
        return {name: p.detach().clone() for name, p in self.module.named_parameters()}

    def to(self, where: torch.device | torch.dtype) -> "Model":
        """The same function, with what it holds beside the parameters on another device, or of
        another type.
        """
        moved = copy.copy(self)
        training, evaluating = (copy.deepcopy(m).to(where) for m in (self.module, self._evaluating))
        moved._setup(training, evaluating, self.loss)
        return moved

    def __call__(self, params: Params, x: Tensor, key: Tensor | None = None) -> Tensor:
        if key is None:
            return _call(self._evaluating, self._own(params), x)  # type: ignore[no-any-return]
        return _call(self.module, self._own(params) | dict.fromkeys(self._keys, key), x)  # type: ignore[no-any-return]

    def _own(self, params: Params) -> dict[str, Tensor]:
        return {place: params[name] for place, name in self._places} | self._buffers

    def along(
        self, params: Params, x: Tensor, direction: Tensor, key: Tensor
    ) -> tuple[Tensor, Tensor]:
        """`model(params, x, key)` and its derivative ∂f/∂x · direction, one for each sample or one
        for all.
        """
        own = self._own(params) | dict.fromkeys(self._keys, key)
        value, derivative = _call(
            self._along, {f"module.{n}": t for n, t in own.items()}, x, direction
        )
        return value, derivative

    def head(self, layer: int) -> "Model":
        """The model up to layer `layer` (its first `layer` children)."""
        return self._cut(None, self._layer(layer))

    def tail(self, layer: int) -> "Model":
        """The model from layer `layer` on; `tail(0)` is the whole."""
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
    # Not named_children(), which leaves out an object that it has met before, such as one ReLU in
    # two places.
    return nn.Sequential(OrderedDict(list(module._modules.items())[part])).train(module.training)  # type: ignore[arg-type]


def _forward(module: nn.Module) -> Any:
    """The function that a call of the module runs."""
    return getattr(module.forward, "__func__", module.forward)


def _call(module: nn.Module, tensors: dict[str, Tensor], *args: Tensor) -> Any:
    # With tie_weights a layer that is there twice would get the same tensor twice, and keep it.
    return functional_call(module, tensors, args, tie_weights=False)


def _objections(part: nn.Module) -> Iterator[str]:
    """Why a layer cannot be trained here."""
    yield from (reason for kind, reason in _REFUSED if isinstance(part, kind))
    names = ("_backward_hooks", "_backward_pre_hooks", "_post_accumulate_grad_hooks")
    if any(
        getattr(one, name, None) for one in (part, *part._parameters.values()) for name in names
    ):
        yield "has a hook on its gradients, which would never run; take it off"


def _prepared(module: nn.Module) -> nn.Module:
    """Its layers replaced in place by those of this package, in every place, also those that share
    one object.
    """
    site = 0
    for parent in list(module.modules()):
        for name, child in list(parent._modules.items()):
            if isinstance(child, _DropoutNd) and _forward(child) in DROPOUTS:
                keyed = KeyedDropout(
                    child.p, site, whole_channels=not isinstance(child, nn.Dropout)
                )
                vars(keyed).update(
                    {n: v for n, v in vars(child).items() if n.startswith("_forward_")}
                )  # its hooks
                setattr(parent, name, keyed)
                site += 1
            for ours in (Conv2d, GroupNorm, LayerNorm, Linear, MaxPool2d):
                if child is not None and ours.can_replace(child):
                    child.__class__ = ours  # the same parameters, another forward
    return module


def model_for(data: FederatedData, module: nn.Module, loss: Loss | None = None) -> Model:
    """The module as a model of such samples, with the loss that goes with them unless one is given;
    refused if it cannot be.
    """
    model = Model(module, loss or (cross_entropy if data.classes is not None else squared_error))
    _check_transform(data)
    _check_fits(model, data)
    _check_copy(model, module, data.inputs(data.x[:2]))
    return model


def _check_transform(data: FederatedData) -> None:
    """Refuse a transform that draws numbers, or that looks at other samples of a batch."""
    rows = data.some(FEW)
    once, again = data.inputs(rows), data.inputs(rows)
    twice = torch.cat([data.inputs(rows[[i, i]])[:1] for i in range(len(rows))])
    kind = type(data.transform).__name__
    if not torch.equal(once, again):
        raise BadInput(
            f"{data.name}: {kind} gives two results for the same samples, so runs could not be "
            "repeated"
        )
    if not torch.allclose(once, twice, 1e-3, 1e-5):
        raise BadInput(
            f"{data.name}: what {kind} makes of a sample depends on the other samples of its "
            "batch, such as on their mean, "
            "and batches hold padding; let it treat each sample by itself"
        )


def _check_copy(model: Model, module: nn.Module, x: Tensor) -> None:
    """Refuse a module of which a copy does not follow its own weights: a function in it holds on to
    the original.
    """
    normal, modes = trial(), [(part, part.training) for part in module.modules()]
    params = {name: p + 0.1 * normal(p.shape).to(p) for name, p in module.named_parameters()}
    x = x.to(next(iter(params.values())).device)
    try:
        with torch.no_grad():
            original, copied = _call(module.eval(), model._own(params), x), model(params, x)
    finally:
        for part, training in modes:
            part.training = training
    if not torch.allclose(original, copied, 1e-3, 1e-5):
        raise BadInput(
            "the model cannot be copied: a function in it, such as a replaced forward or a lambda, "
            "calls the original and "
            "not the copy; write it as a method of its class"
        )


def _check_fits(model: Model, data: FederatedData) -> None:
    """Refuse a model that cannot be trained on such samples: wrong shapes, or randomness that no
    plan drew.

    It is tried on the CPU, since a GPU would compile kernels for this.
    """
    x, y = (
        data.inputs(data.x[:2]).clone(),
        data.labels(data.y[:2]),
    )  # a copy, which the model may change
    model = model.to(x.device)
    params, key = model.init(), torch.tensor(1)
    if not model.trained:
        raise BadInput(
            "the model has no parameters that can be trained; give it some, or set requires_grad"
        )
    stream, version = torch.get_rng_state(), x._version
    try:
        with torch.no_grad():
            changed = _changed_buffers(model, x)
            first, second = model(params, x, key), model(params, x, key)
            among = model(params, x)
            pairs = [x[i : i + 1].expand_as(x).clone() for i in range(len(x))]
            twice = [model(params, pair)[:1] for pair in pairs]
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        other = sorted(
            {str(p.dtype).removeprefix("torch.") for p in params.values() if p.dtype != x.dtype}
        )
        advice = (
            f"; its weights are {', '.join(other)} and must be float32, as module.float() makes "
            "them"
            if other
            else ""
        )
        raise BadInput(
            f"the model does not take inputs of shape {tuple(x.shape)}: {first_line(error)}{advice}"
        ) from error
    if not isinstance(first, Tensor):
        raise BadInput(
            f"the model returns a {type(first).__name__}; it must return one tensor of outputs"
        )
    if first.shape != y.shape:
        raise BadInput(
            f"the model's output has shape {tuple(first.shape)} but the labels {tuple(y.shape)}; "
            f"give its last layer {y.shape[-1]} outputs"
        )
    if not torch.isfinite(first).all():
        raise BadInput(
            "the model's output holds NaN or infinity before any training; look at its first "
            "weights"
        )
    if not torch.equal(stream, torch.get_rng_state()):
        raise BadInput(
            "the model draws random numbers by itself, so runs could not be repeated; "
            "use nn.Dropout layers instead of torch.nn.functional.dropout"
        )
    if x._version != version:  # even where the values are still the same
        raise BadInput(
            "the model changes its inputs in place, as x /= 2 or a first nn.ReLU(inplace=True) "
            "would; make that x = x / 2"
        )
    if changed:
        raise BadInput(
            f"the model changes its buffer {changed[0]!r} when it is called, which clients cannot "
            "share; leave that out"
        )
    if not torch.equal(first, second):
        raise BadInput(
            "the model gives two outputs for the same inputs, so runs could not be repeated: it "
            "draws random numbers by itself, "
            "or changes itself when it is called; leave that out"
        )
    if not torch.allclose(among, torch.cat(twice), 1e-3, 1e-5):
        raise BadInput(
            "the model's output for a sample depends on the other samples of its batch, such as by "
            "their mean, "
            "and batches hold padding; let it treat each sample by itself"
        )


def _changed_buffers(model: Model, x: Tensor) -> list[str]:
    """Those that the module itself changes in training; where a pure function is made of it, that
    would be lost.
    """
    module = copy.deepcopy(model.module)
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    module(x)
    return [
        name
        for name, buffer in module.named_buffers()
        if name in before and not torch.equal(buffer, before[name])
    ]
