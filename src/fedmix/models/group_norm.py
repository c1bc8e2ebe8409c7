"""Group normalisation in the place of batch normalisation, for models that came with the latter."""

import copy

from torch import nn

from fedmix.core.errors import BadInput
from fedmix.core.validation import instance, whole

BatchNorm = nn.modules.batchnorm._BatchNorm


def group_norm(module: nn.Module, groups: int = 32) -> nn.Module:
    """Return a copy of a module with `nn.GroupNorm` wherever it has batch normalisation.

    A layer of C channels gets as many groups as possible: a divisor of C, at most `groups` (32, as
    in Wu and He 2018), with two channels or more in each. Its weight, bias and ε stay. Statistics
    are those of one sample then, so clients need not share them.

    Args:
        module: The module, such as a ResNet of torchvision; it is not changed.
        groups: The largest number of groups.

    Raises:
        BadInput: `module` is no module, or a layer's statistics of one sample would be nothing.

    >>> block = nn.Sequential(nn.Conv2d(3, 48, 3), nn.BatchNorm2d(48), nn.ReLU())
    >>> group_norm(block)[1].num_groups
    24
    """
    instance("module", module, nn.Module, "give an instance of an nn.Module: Net() instead of Net")
    for name, part in module.named_modules():
        if isinstance(part, BatchNorm):
            _check(part, name)
    most, changed = whole("groups", groups), copy.deepcopy(module)
    new = {part: _instead(part, most) for part in changed.modules() if isinstance(part, BatchNorm)}
    for parent in list(changed.modules()):
        for name, child in parent._modules.items():
            if isinstance(child, BatchNorm):
                parent._modules[name] = new[child]
    return new.get(changed, changed)  # type: ignore[call-overload, no-any-return]


def _check(norm: BatchNorm, name: str) -> None:
    if norm.num_features == 0:
        raise BadInput(
            f"layer {name!r} ({type(norm).__name__}) does not know its channels yet; call the "
            "module once with a batch of inputs"
        )
    if norm.num_features == 1 and isinstance(norm, nn.BatchNorm1d):
        raise BadInput(
            f"layer {name!r} ({type(norm).__name__}) normalises a single number, which is 0 by "
            "itself; leave it out"
        )


def _instead(norm: BatchNorm, most: int) -> nn.GroupNorm:
    channels = norm.num_features
    fewer = range(1, 1 + min(most, max(1, channels // 2)))
    made = nn.GroupNorm(max(n for n in fewer if channels % n == 0), channels, norm.eps, norm.affine)
    if norm.affine:
        made.weight, made.bias = norm.weight, norm.bias
    return made.train(norm.training)
