"""Checks that an objective, a model and a loss work together, before anything runs.

An objective must draw no random numbers and ignore padding. What it mixes must allow it: the model
must not treat inputs as whole numbers, and the loss must be linear in its target. PyTorch's second
derivatives must be right where an objective needs them.
"""

import math

import torch
from torch import Tensor
from torch.func import vjp

from fedmix.core.errors import BadInput, FedmixError, described
from fedmix.core.losses import Loss, is_linear
from fedmix.core.rng import trial
from fedmix.core.types import Batch, Params
from fedmix.data.federated import FederatedData
from fedmix.models.along import by_rules
from fedmix.models.functional import Model
from fedmix.objectives.base import Objective, parts, titled
from fedmix.objectives.fedmix import FedMix

STEP = 1e-5  # step of finite differences in float64
KEY = torch.tensor(1)
DRAWS = 8  # draws of parameters
SAMPLES = 64  # enough for whole-number inputs to have more than one value


def check_objective(objective: Objective, model: Model, data: FederatedData) -> None:
    """Check an objective, and the model and the loss that it is to train.

    It runs on the CPU, since a GPU would compile kernels for it.

    Args:
        objective: The objective.
        model: The model with its loss.
        data: The data to train on.

    Raises:
        BadInput: The objective breaks a rule, or cannot train the model or the loss.
    """
    model, needs = model.to(torch.device("cpu")), objective.needs
    params = model.init()
    if needs.mixes and not needs.layer:
        _check_numbers(data)
    padded = _two_samples(objective, model, params, data)
    if needs.means:
        _check_linear(model.loss, data.outputs)
    if needs.mixes and not needs.layer:
        _check_mixable(model, params, padded.x, data.inputs(data.some(SAMPLES)))
    _check_values(objective, model, params, padded)
    if any(isinstance(part, FedMix) for part in parts(objective)):
        hidden = model.head(needs.layer)(params, padded.x) if needs.layer else padded.x
        _check_derivative(model.tail(needs.layer), hidden)


def _check_values(objective: Objective, model: Model, params: Params, padded: Batch) -> None:
    """Raise BadInput if an objective gives a batch two values, or if padding changes its value."""
    alone = padded.only(slice(0, 1))
    trained = {n: p.detach().requires_grad_(n in model.trained) for n, p in params.items()}
    for phase in objective.phases():
        name = titled(phase.objective)
        try:
            given = [phase.objective(model, trained, params, b) for b in (alone, padded, padded)]
        except FedmixError:
            raise
        except Exception:  # the first step fails too, and reports its input
            return
        for value in given:
            if not isinstance(value, Tensor) or value.shape:
                kind = isinstance(value, Tensor)
                held = f"of shape {tuple(value.shape)}" if kind else described(value)
                raise BadInput(
                    f"the objective {name} returns a value {held}; let it return a tensor of one "
                    "number, as batch_mean(values, batch.mask) does"
                )
            if not value.requires_grad:
                raise BadInput(
                    f"the objective {name} does not depend on the weights, so that nothing would "
                    "train; take the outputs of model(params, batch.x, batch.key)"
                )
        one, beside, again = (value.item() for value in given)
        if not math.isfinite(beside):
            raise BadInput(
                f"the objective {name} is {beside} before any training; look at its parameters and "
                "formula"
            )
        if beside != again:
            raise BadInput(
                f"the objective {name} gives two values for the same batch, so runs could not be "
                "repeated: it draws random numbers by itself; what is random comes with the batch"
            )
        if abs(one - beside) > 1e-4 * abs(one) + 1e-5:
            raise BadInput(
                f"the objective {name} lets padding count: {one:.4g} for one sample, and "
                f"{beside:.4g} with another beside it that batch.mask leaves out; take means over "
                "samples by batch_mean(values, batch.mask)"
            )


def _two_samples(objective: Objective, model: Model, params: Params, data: FederatedData) -> Batch:
    """Return a batch of a sample and another as padding, with all that the objective needs."""
    needs, ends = objective.needs, [0, -1]
    x, y = data.inputs(data.x[ends]), data.labels(data.y[ends])
    hidden = model.head(needs.layer)(params, x) if needs.layer else x
    received = slice(0, 1 if needs.means == "batch" else 2)
    kept, shared = needs.state.first(params) if needs.state else (None, None)
    return Batch(
        x, y, torch.tensor([1.0, 0.0]), KEY,
        mean_x=hidden.flip(0)[received] if needs.means else None,
        mean_y=y.flip(0)[received] if needs.means else None,
        partner_x=x.flip(0) if needs.partner else None,
        partner_y=y.flip(0) if needs.partner else None,
        lam=torch.tensor([0.3, 0.6] if needs.each else 0.3) if needs.alpha else None,
        counts=torch.arange(1.0, 1 + y.shape[-1]) if needs.counts else None,
        samples=torch.tensor(2.0) if needs.samples else None, kept=kept, shared=shared,
    )  # fmt: skip


def _check_linear(loss: Loss, outputs: int) -> None:
    """Raise BadInput for a loss for which a mean of targets cannot replace the targets."""
    try:
        linear = is_linear(loss.value, outputs)
    except Exception:  # as above
        return
    if not linear:
        raise BadInput(
            f"the loss {loss.name!r} is not linear in its target, so that a mean of targets cannot "
            "stand for the targets; use cross_entropy or squared_error of fedmix.core.losses, or "
            "an objective without means"
        )


def _check_numbers(data: FederatedData) -> None:
    """Raise BadInput for inputs that are integers, of which no mixture is one."""
    if not data.inputs(data.x[:1]).is_floating_point():
        raise BadInput(
            f"this objective mixes inputs, and those of {data.name} are integers, such as token "
            "ids, of which a mixture means nothing; give transform=OneHot(size), whose vectors "
            "nn.Embedding takes too (fedmix.data.transforms), mix hidden states by Hidden(..., "
            "layer=1), or make numbers floats"
        )


def _check_mixable(model: Model, params: Params, x: Tensor, samples: Tensor) -> None:
    """Raise BadInput if the model treats inputs as whole numbers.

    Such a model's output does not change with a small change of an input, but does with a large
    one: to the smallest or largest value of that input in `samples`. Several draws of parameters
    are tried, since outputs behind dead ReLUs do not change with small changes either.
    """
    low, high = samples.amin(0), samples.amax(0)
    end = torch.where(x == low, high, low)
    normal, flat = trial(x.dtype), torch.ones_like(x[0], dtype=torch.bool)
    try:
        for _ in range(DRAWS):
            # Noise is added, since initial parameters may be zero.
            tried = {name: p + 0.1 * normal(p.shape).to(p.dtype) for name, p in params.items()}
            with torch.enable_grad():
                of = x.clone().requires_grad_()
                z = model(tried, of, KEY)
                weighted = (z * normal(z.shape)).sum()
                slope = (
                    torch.autograd.grad(weighted, of, allow_unused=True)[0]
                    if z.requires_grad
                    else None
                )
            flat &= torch.ones_like(flat) if slope is None else (slope == 0).all(0)
            others = (torch.where(flat, other, x) for other in (x + 0.25, end, end + 0.25))
            near, far, near_far = (model(tried, other, KEY) for other in others)
            if not torch.equal(z, near) or not torch.equal(far, near_far) or torch.equal(z, far):
                return
    except Exception:  # as above
        return
    raise BadInput(
        "the model takes inputs for whole numbers, such as token ids by x.long(), and this "
        "objective would mix them by value; give integers with transform=OneHot(size), whose "
        "vectors nn.Embedding takes, or mix at the embedding by Hidden(..., layer=1)"
    )


def _check_derivative(model: Model, x: Tensor) -> None:
    """Raise BadInput if FedMix's gradient of the model is wrong.

    PyTorch's second derivatives of some operations are. In float64, the gradient of the derivative
    along an input is compared with that of a finite difference. If the two derivatives differ
    themselves, the model has a kink there or a derivative of its own, and nothing is raised.
    """
    if by_rules(model.module):
        return
    normal, exact = trial(torch.float64), model.to(torch.float64)
    params = {name: p + 0.1 * normal(p.shape) for name, p in exact.init().items()}
    x = x.double() + 0.1 * normal(x.shape)
    dx = normal(x.shape)

    def along(trained: Params) -> Tensor:
        return exact.along(params | trained, x, dx, KEY)[1]

    def difference(trained: Params) -> Tensor:
        there, back = (exact(params | trained, x + step * dx, KEY) for step in (STEP, -STEP))
        return (there - back) / (2 * STEP)

    trained = {name: params[name] for name in exact.trained}
    try:
        (given, *pull_given), (right, *pull_right) = vjp(along, trained), vjp(difference, trained)
        v = normal(right.shape)
        mine, theirs = (
            torch.cat([t.flatten() for t in pull(v)[0].values()])
            for pull in (pull_given[0], pull_right[0])
        )
    except Exception:  # as above
        return
    off, size = float((mine - theirs).norm()), float(theirs.norm())
    # Rounding in float64 cannot be that large.
    if torch.allclose(given, right, 1e-3, 1e-5) and off > 0.01 * size + 1e-6:
        raise BadInput(
            f"FedMix would train this model by gradients that are {off / (size or off):.0%} off: "
            "PyTorch's second derivative of an operation in it is wrong, or leaves out a hook; "
            "replace that (normalise by nn.LayerNorm or nn.GroupNorm), or use NaiveMix"
        )
