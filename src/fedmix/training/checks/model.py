"""Checks that a model can be trained on the data, before anything runs."""

import copy
import warnings

import numpy as np
import torch
from torch import Tensor, nn

from fedmix.core.errors import BadInput, FedmixWarning, described, first_line
from fedmix.core.losses import Loss, cross_entropy, plain, squared_error
from fedmix.core.rng import trial
from fedmix.data.federated import FederatedData
from fedmix.models.functional import Model

FEW = 8  # number of samples for the check of a transform


def model_for(data: FederatedData, module: nn.Module, loss: Loss | None = None) -> Model:
    """Make the model of a module for this data, and check that the two fit.

    Args:
        data: The data to train on.
        module: The module.
        loss: The loss; None is cross-entropy for classes and squared error for regression.

    Raises:
        BadInput: The module cannot be trained on this data; the message says why.
    """
    model = Model(module, loss or (cross_entropy if data.classes is not None else squared_error))
    _check_transform(data)
    _check_loss(model.loss, data)
    _check_fits(model, data)
    _check_codes(model, data)
    _check_copy(model, module, data.inputs(data.x[:2]))
    return model


def _check_transform(data: FederatedData) -> None:
    """Raise BadInput for a transform that draws numbers or uses other samples of the batch."""
    rows, kind = np.array(data.some(FEW)), type(data.transform).__name__
    given, units = rows.copy(), data.units(rows)
    held, once = units.clone(), data.transform.normalise(units)
    if not np.array_equal(rows, given) or not torch.allclose(units, held, 0, 0, equal_nan=True):
        raise BadInput(
            f"{data.name}: {kind} changes the samples that it is given, as x -= 0.5 would; make "
            "that x = x - 0.5"
        )
    if len(once) != len(rows):
        raise BadInput(
            f"{data.name}: {kind} makes {len(once)} inputs of {len(rows)} samples; make one of each"
        )
    if not torch.isfinite(once).all():
        raise BadInput(f"{data.name}: {kind} makes NaN or infinity of samples; look at its formula")
    again = data.inputs(rows)
    twice = torch.cat([data.inputs(rows[[i, i]])[:1] for i in range(len(rows))])
    if not torch.equal(once, again):
        raise BadInput(
            f"{data.name}: {kind} gives two results for the same samples, so runs could not be "
            "repeated"
        )
    if not torch.allclose(once, twice, 1e-3, 1e-5):
        raise BadInput(
            f"{data.name}: what {kind} makes of a sample depends on the other samples of its "
            "batch, such as on their mean, and batches hold padding; let it treat each sample by "
            "itself"
        )


def _check_loss(loss: Loss, data: FederatedData) -> None:
    """Raise BadInput if the loss, or a score beside it, does not give a value for each sample.

    Values of another shape would be broadcast against the batch's mask, or averaged wrongly.
    """
    count = 3 if data.outputs == 2 else 2  # not the number of outputs
    if loss.weights is not None:
        if data.classes is None:
            raise BadInput(
                f"the loss {loss.name!r} has weights of classes, and {data.name} is a regression; "
                "leave them out"
            )
        if len(loss.weights) != data.classes:
            raise BadInput(
                f"the loss {loss.name!r} has {len(loss.weights)} weights and {data.name} "
                f"{data.classes} classes; give one for each"
            )
    targets = data.labels(np.repeat(data.y[:1], count, 0))
    outputs, how = trial()(targets.shape), "give one for each, as with reduction='none'"
    for name in ("value", "report", "score"):
        try:
            got = getattr(loss, name)(outputs, targets)
        except Exception as error:
            raise BadInput(
                f"the loss {loss.name!r}: its {name} fails for outputs and targets of shape "
                f"{tuple(targets.shape)}: {first_line(error)}"
            ) from error
        if not isinstance(got, Tensor):
            raise BadInput(f"the loss {loss.name!r}: its {name} is {described(got)}; {how}")
        if got.shape != (count,):
            raise BadInput(
                f"the loss {loss.name!r}: its {name} gives values of shape {tuple(got.shape)} for "
                f"{count} samples; {how}"
            )


def warn_of_probabilities(model: Model, data: FederatedData) -> None:
    """Warn about a model that ends in a softmax although the loss takes logits."""
    if plain(model.loss) is not cross_entropy.value or data.outputs == 1:
        return
    model, x = model.to(torch.device("cpu")), data.inputs(data.x[:2]).clone()
    normal = trial()  # noise, since the first weights may be special
    params = {name: p + 0.1 * normal(p.shape).to(p) for name, p in model.init().items()}
    with torch.no_grad():
        outputs = model(params, x, torch.tensor(1))
    if outputs.min() >= 0 and torch.allclose(outputs.sum(-1), torch.ones(len(outputs))):
        warnings.warn(
            "the model's outputs are probabilities, and cross_entropy takes logits, so that it "
            "would train slowly or not at all; leave out the softmax at its end",
            FedmixWarning,
            stacklevel=4,  # the caller of Federation
        )


def _check_copy(model: Model, module: nn.Module, x: Tensor) -> None:
    """Raise BadInput if a copy of the module does not use its own weights.

    That happens if a function in it refers to the original.
    """
    normal, modes = trial(), [(part, part.training) for part in module.modules()]
    params = {name: p + 0.1 * normal(p.shape).to(p) for name, p in module.named_parameters()}
    x = x.to(next(iter(params.values())).device)
    try:
        with torch.no_grad():
            original, copied = model.of_original(module.eval(), params, x), model(params, x)
    finally:
        for part, training in modes:
            part.training = training
    if not torch.allclose(original, copied, 1e-3, 1e-5):
        raise BadInput(
            "the model cannot be copied: a function in it, such as a replaced forward or a lambda, "
            "calls the original and not the copy; write it as a method of its class"
        )


def _check_fits(model: Model, data: FederatedData) -> None:
    """Raise BadInput for a model with wrong shapes, or with random numbers of its own.

    It runs on the CPU, since a GPU would compile kernels for it.
    """
    # a copy, since the model may change it
    x, y = data.inputs(data.x[:2]).clone(), data.labels(data.y[:2])
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
        if not x.is_floating_point():
            raise BadInput(
                f"the model does not take integers of shape {tuple(x.shape)}: {first_line(error)}; "
                "integers stay what they are, codes for an nn.Embedding: make numbers floats, as "
                "by x.astype('float32'), and pictures Images (fedmix.data.transforms)"
            ) from error
        other = sorted(
            {str(p.dtype).removeprefix("torch.") for p in params.values() if p.dtype != x.dtype}
        )
        advice = (
            f"; its weights are {', '.join(other)} and must be float32, as module.float() makes "
            "them"
            if x.dtype == torch.float32
            else f"; its weights are {', '.join(other)}, and {type(data.transform).__name__} "
            f"makes inputs {str(x.dtype).removeprefix('torch.')}; make both float32"
        )
        advice = advice if other else ""
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
    if x._version != version:  # even if the values are the same
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
            "draws random numbers by itself, or changes itself when it is called; leave that out"
        )
    if not torch.allclose(among, torch.cat(twice), 1e-3, 1e-5):
        raise BadInput(
            "the model's output for a sample depends on the other samples of its batch, such as by "
            "their mean, and batches hold padding; let it treat each sample by itself"
        )


def _check_codes(model: Model, data: FederatedData) -> None:
    """Raise BadInput for integer inputs that the model has no place for.

    Clients side by side would take a code of -1 for the last one. The smallest and the largest code
    of each place are tried, alone as two samples.
    """
    if data.inputs(data.x[:1]).is_floating_point():
        return
    model = model.to(torch.device("cpu"))
    for part, x in (("training", data.x), *([("test", data.test.x)] if data.test else [])):
        try:
            with torch.no_grad():
                model(model.init(), data.inputs(np.stack([x.min(0), x.max(0)])))
        except (IndexError, RuntimeError) as error:
            raise BadInput(
                f"{data.name}: the model cannot look up all {part} inputs, codes in "
                f"{x.min()}..{x.max()}: {first_line(error)}; give its nn.Embedding as many rows, "
                "or correct them"
            ) from error


def _changed_buffers(model: Model, x: Tensor) -> list[str]:
    """Names of buffers that the module changes in training; a pure function would lose them."""
    module = copy.deepcopy(model.module)
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    module(x)
    return [
        name
        for name, buffer in module.named_buffers()
        if name in before and not torch.equal(buffer, before[name])
    ]
