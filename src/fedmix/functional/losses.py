"""The objectives as plain functions of a module and a batch, for loops of your own."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from fedmix.core.errors import BadInput, described
from fedmix.core.losses import Loss
from fedmix.core.validation import instance
from fedmix.functional import inputs
from fedmix.functional.slope import Forward, mean_of_both
from fedmix.functional.targets import PerSampleLoss, Targets
from fedmix.objectives.fedmix import FedMix
from fedmix.objectives.mixup import LocalMix, loss_at_mix, mixed
from fedmix.objectives.naivemix import NaiveMix
from fedmix.objectives.proximal import Proximal

AnyLoss: TypeAlias = Loss | PerSampleLoss | str | None


def fedmix_loss(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    mean_x: Tensor,
    mean_y: Tensor,
    lam: float,
    *,
    expand: Literal["loss", "logits"] = FedMix.expand,
    scale: Literal["proposition", "algorithm"] = FedMix.scale,
    loss: AnyLoss = None,
    forward: Forward | None = None,
) -> Tensor:
    """Return FedMix's loss of a batch, `fedmix.FedMix` for any module.

    The module is called once, as it is and in its mode. Dropout, batch statistics and hooks are
    those of that call. Its derivative along the means comes from forward mode where all of its
    layers have it, and from double backward otherwise. The first call with a module runs it once or
    twice more, to compare the two.

    Args:
        net: The module.
        x: Inputs, (B, ...), floating-point.
        y: Class labels (B,), label vectors (B, C), or targets of a regression.
        mean_x: Received mean inputs: one for the batch, (1, ...), or one per sample, (B, ...).
        mean_y: Their mean label vectors, (1, C) or (B, C).
        lam: The mixing ratio λ.
        expand: Whether the "loss" is expanded, as in the paper, or the "logits".
        scale: As in `fedmix.FedMix`.
        loss: A loss per sample that is linear in its target: "cross_entropy" (the default),
            "squared_error", a loss of `fedmix.losses`, or a function of (outputs, targets), each
            (B, ...), such as `nn.CrossEntropyLoss(reduction="none")`.
        forward: How the module is called, if not by `net(x)`; a function of (net, x) that returns
            the outputs.

    Raises:
        BadInput: An argument does not fit the others, or the module has no such derivative.

    >>> from fedmix.functional import fedmix_loss
    >>> net = nn.Linear(2, 2, bias=False)
    >>> _ = nn.init.eye_(net.weight)
    >>> x, y = torch.tensor([[2.0, 0.0]]), torch.tensor([0])
    >>> mean_x, mean_y = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 0.5]])
    >>> z = torch.tensor([[0.9 * 2.0, 0.1]])     # the logits are linear, so that this is exact
    >>> expected = -(torch.tensor([0.95, 0.05]) * z.log_softmax(1)).sum()
    >>> ours = fedmix_loss(net, x, y, mean_x, mean_y, lam=0.1, expand="logits")
    >>> torch.allclose(ours, expected)
    True
    """
    how = FedMix(lam, scale, expand)
    inputs.check(net, x, y)
    inputs.check_means(x, mean_x, mean_y)
    of, mean_x = Targets(loss, y, mean_y), mean_x.to(x.dtype)

    def loss_of_both(outputs: Tensor, tangent: Tensor) -> Tensor:
        own, mean = of.at(outputs)
        return how.expanded(lam, of.loss, outputs, tangent, own, mean)

    return mean_of_both(net, _call(forward), (1 - lam) * x, mean_x.expand_as(x), loss_of_both)


def naivemix_loss(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    mean_x: Tensor,
    mean_y: Tensor,
    lam: float | None = None,
    *,
    alpha: float | None = None,
    loss: AnyLoss = None,
    forward: Forward | None = None,
) -> Tensor:
    """Return NaiveMix's loss of a batch: mixup with means as if they were samples.

    It costs no more than a plain step. With `alpha`, and a mean of five samples for each sample, it
    is `fedmix.MeanMix`.

    Args:
        net: The module.
        x: Inputs, (B, ...), floating-point.
        y: Their targets, as in `fedmix_loss`.
        mean_x: Received mean inputs, as in `fedmix_loss`.
        mean_y: Their mean label vectors.
        lam: The mixing ratio λ; give this or `alpha`.
        alpha: λ is drawn from Beta(alpha, alpha), once per call.
        loss: As in `fedmix_loss`.
        forward: As in `fedmix_loss`.

    Raises:
        BadInput: An argument does not fit the others.
    """
    NaiveMix(lam, alpha=alpha)
    inputs.check(net, x, y)
    inputs.check_means(x, mean_x, mean_y)
    ratio = _ratio(lam, alpha)
    return _mixup(net, x, y, mean_x.to(x.dtype), mean_y, ratio, loss, forward)


def localmix_loss(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    partner_x: Tensor | None = None,
    partner_y: Tensor | None = None,
    *,
    alpha: float | None = None,
    lam: float | None = None,
    loss: AnyLoss = None,
    forward: Forward | None = None,
) -> Tensor:
    """Return LocalMix's loss of a batch: mixup of samples with other samples of one's own.

    Args:
        net: The module.
        x: Inputs, (B, ...), floating-point.
        y: Their targets, as in `fedmix_loss`.
        partner_x: The samples to mix with, (B, ...); by default those of the batch, shuffled.
        partner_y: Their targets.
        alpha: λ is drawn from Beta(alpha, alpha), once per call.
        lam: λ itself; give this or `alpha`.
        loss: As in `fedmix_loss`.
        forward: As in `fedmix_loss`.

    Raises:
        BadInput: An argument does not fit the others.
    """
    LocalMix(alpha=alpha, lam=lam)
    inputs.check(net, x, y)
    if (partner_x is None) != (partner_y is None):
        raise BadInput("partner_x and partner_y go together; give both, or neither")
    if partner_x is None or partner_y is None:
        order = torch.randperm(len(x), device=x.device)
        partner_x, partner_y = x[order], y[order]
    inputs.check(net, partner_x, partner_y, "partner_")
    if partner_x.shape != x.shape or partner_y.shape != y.shape:
        raise BadInput(
            f"partner_x and partner_y have the shapes {tuple(partner_x.shape)} and "
            f"{tuple(partner_y.shape)}, x and y {tuple(x.shape)} and {tuple(y.shape)}; give one "
            "partner for each sample"
        )
    return _mixup(net, x, y, partner_x, partner_y, _ratio(lam, alpha), loss, forward)


def prox(net: nn.Module, anchor: Mapping[str, Tensor], mu: float) -> Tensor:
    """Return FedProx's term μ/2 · ‖w − w_anchor‖², to be added to a loss.

    Args:
        net: The module, with weights w.
        anchor: The weights at the start of the round, by name: a copy of `net.state_dict()`.
        mu: μ.

    Raises:
        BadInput: The anchor lacks a weight, has one of another shape, or is no copy.

    >>> import copy
    >>> net = nn.Linear(2, 1)
    >>> anchor = copy.deepcopy(net.state_dict())
    >>> with torch.no_grad():
    ...     _ = net.bias.add_(3.0)
    >>> round(prox(net, anchor, mu=0.1).item(), 4)
    0.45
    """
    instance("net", net, nn.Module, "give an nn.Module")
    instance("anchor", anchor, Mapping, "give the weights by name: copy.deepcopy(net.state_dict())")
    params: dict[str, Tensor] = {name: p for name, p in net.named_parameters() if p.requires_grad}
    if not params:
        raise BadInput("this net has no weight that is trained; prox is for those that are")
    for name, p in params.items():
        before = anchor.get(name)
        if not isinstance(before, Tensor) or before.shape != p.shape:
            raise BadInput(
                f"the anchor has no weight {name!r} of shape {tuple(p.shape)}; give a copy of "
                "net.state_dict() of the same net, wrapped in the same way"
            )
        if before is p or (p.numel() and before.data_ptr() == p.data_ptr()):
            raise BadInput(
                "the anchor is the net's own weights, which move with it; give a copy: "
                "copy.deepcopy(net.state_dict())"
            )
    return Proximal(mu).term(params, {name: anchor[name].detach() for name in params})


def _call(forward: Forward | None) -> Forward:
    if forward is None:
        return lambda net, x: net(x)
    if not callable(forward):
        raise BadInput(f"`forward` is {described(forward)}; give a function of (net, x)")
    return forward


def _ratio(lam: float | None, alpha: float | None) -> float:
    """Return λ, drawn if it is not given."""
    if lam is not None:
        return lam
    assert alpha is not None  # the objective asks for one of them
    return float(torch.distributions.Beta(alpha, alpha).sample())


def _mixup(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    other_x: Tensor,
    other_y: Tensor,
    lam: float,
    loss: AnyLoss,
    forward: Forward | None,
) -> Tensor:
    of = Targets(loss, y, other_y)
    outputs = inputs.outputs(_call(forward)(net, mixed(x, other_x, lam)), len(x))
    return loss_at_mix(of.loss, outputs, *of.at(outputs), lam).mean()
