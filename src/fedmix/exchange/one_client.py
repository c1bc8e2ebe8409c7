"""What leaves a client: means of its samples.

Samples are split into groups of M_k, clipped if the settings say so, and averaged by group; noise
is added to the means.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedmix.core.rng import Noise
from fedmix.core.types import Array
from fedmix.data.ragged import Ragged
from fedmix.exchange.settings import Exchange

CHUNK = 1024


class Means(NamedTuple):
    """Mean inputs (g, ...) and mean label vectors (g, C)."""

    x: Tensor
    y: Tensor

    @property
    def bytes(self) -> int:
        """Size of the values in bytes."""
        return sum(t.numel() * t.element_size() for t in self)


def split_at_random(count: int, size: int, rng: np.random.Generator) -> list[Array]:
    """Split positions 0..count-1 into random groups of `size`.

    The remainder joins the last group, so that no group is smaller.

    >>> [len(g) for g in split_at_random(10, 4, np.random.default_rng(0))]
    [4, 6]
    """
    return _cut(rng.permutation(count), size)


def split_by_class(labels: Array, size: int, rng: np.random.Generator) -> list[Array]:
    """Split samples into groups of one class each, none smaller than `size`.

    Classes with fewer samples share groups. If they have too few for a group together, they join
    the last one.

    Args:
        labels: The class of each sample.
        size: The smallest size of a group.
        rng: Shuffles the samples of each class.

    Returns:
        The positions of the samples of each group.
    """
    groups: list[Array] = []
    rest: list[Array] = []
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        if len(rows) < size:
            rest.append(rows)
        else:
            groups += _cut(rows, size)
    left = np.concatenate(rest) if rest else np.empty(0, np.int64)
    if len(left) >= size:
        groups += _cut(left, size)
    elif len(left):
        groups[-1] = np.concatenate([groups[-1], left])
    return groups


def _cut(rows: Array, size: int) -> list[Array]:
    return np.split(rows, np.arange(1, len(rows) // size) * size)


def split(y: Tensor, size: int, how: str, rng: np.random.Generator) -> list[Array]:
    """Split a client's samples into groups of at least `size`, by class if `how` is "class".

    If there are too few samples for two groups, one group holds them all and no random numbers are
    drawn.
    """
    if len(y) < 2 * size:
        return [np.arange(len(y))]
    return (
        split_by_class(y.argmax(1).numpy(), size, rng)
        if how == "class"
        else split_at_random(len(y), size, rng)
    )


def clipped(x: Tensor, y: Tensor, how: Exchange) -> tuple[Tensor, Tensor]:
    """Scale samples down to the bounds on their norms.

    The bound holds for input and label together, or for each of them. NaN and infinity become 0.
    """
    if how.clip is None:
        return x, y
    x, y = x.nan_to_num(0.0, 0.0, 0.0), y.nan_to_num(0.0, 0.0, 0.0)
    norm_x, norm_y = x.flatten(1).norm(dim=1), y.norm(dim=1).to(x.device)
    if how.label_clip is None:
        scale_x = scale_y = (how.clip / torch.hypot(norm_x, norm_y)).clamp(max=1)
    else:
        scale_x, scale_y = (how.clip / norm_x).clamp(max=1), (how.label_clip / norm_y).clamp(max=1)
    return x * scale_x.view(-1, *[1] * (x.ndim - 1)), y * scale_y[:, None].to(y.device)


def average(
    x: Array,
    y: Tensor,
    groups: Ragged,
    encode: Callable[[Array], Tensor],
    how: Exchange = Exchange(),  # noqa: B008 - frozen
    most: int = CHUNK,
) -> Means:
    """Return the means of `encode(x)` and of the label vectors `y` over each group, clipped first.

    Sums are computed in float64, a block of samples at a time.

    Args:
        x: Stored samples.
        y: Their label vectors, (n, C).
        groups: The samples of each group, as positions in `x`.
        encode: Turns stored samples into the tensor that is averaged.
        how: The settings of the exchange, of which the bounds on norms are used.
        most: The number of samples of a block.
    """
    order, group = groups.flat, torch.from_numpy(groups.owner)
    size = torch.from_numpy(groups.sizes).double()
    sum_x: Tensor | None = None
    sum_y = torch.zeros(len(groups), y.shape[1], dtype=torch.float64)
    for start in range(0, len(order), most):
        rows, into = order[start : start + most], group[start : start + most]
        part_x, part_y = clipped(encode(x[rows]).double(), y[rows].double(), how)
        if sum_x is None:
            sum_x = torch.zeros(
                len(groups), *part_x.shape[1:], dtype=torch.float64, device=part_x.device
            )
        sum_x.index_add_(0, into.to(part_x.device), part_x)
        sum_y.index_add_(0, into, part_y)
    assert sum_x is not None
    mean_x = sum_x / size.to(sum_x.device).view(-1, *[1] * (sum_x.ndim - 1))
    return Means(mean_x.float(), (sum_y / size[:, None]).float())


def noised(means: Means, counts: Sequence[int], how: Exchange, noises: Iterator[Noise]) -> Means:
    """Add noise to the means of several clients, each from its own stream.

    A stream gives the noise of the inputs first, then that of the labels.

    Args:
        means: The means of all these clients, in order.
        counts: The number of means of each client.
        how: The settings of the exchange.
        noises: A random generator for each client, in order.
    """
    if not any(how.noises):
        return means
    drawn: list[list[Array]] = [[], []]
    for count in counts:
        rng = next(noises)
        for values, sigma, into in zip(means, how.noises, drawn, strict=True):
            if sigma:
                into.append(rng.standard_normal((count, *values.shape[1:]), dtype=np.float32))
    x, y = [
        values + sigma * torch.from_numpy(np.concatenate(parts)).to(values.device)
        if sigma
        else values
        for values, sigma, parts in zip(means, how.noises, drawn, strict=True)
    ]
    return Means(x, y)


def release(
    client: int,
    x: Array,
    y: Tensor,
    how: Exchange,
    encode: Callable[[Array], Tensor],
    grouping: np.random.Generator,
    noise: Noise,
) -> Means | None:
    """Return the means that a client releases, or None if it has fewer samples than the cut-off.

    Nothing else about its data leaves the client.

    Args:
        client: The client's number, for error messages.
        x: Its stored samples.
        y: Their label vectors, (n, C).
        how: The settings of the exchange.
        encode: Turns stored samples into the tensor that is averaged.
        grouping: Draws the groups.
        noise: Draws the noise.

    Raises:
        BadInput: The client has fewer samples than one group needs.
    """
    if len(x) < how.cutoff:
        return None
    size = how.group_size(client, len(x))
    means = average(x, y, Ragged.of(split(y, size, how.split, grouping)), encode, how)
    return noised(means, [len(means.x)], how, iter([noise]))
