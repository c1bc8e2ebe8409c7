"""What leaves a client: its samples split into groups of M_k, clipped if asked for, each group
averaged, and noised.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedmix.core.types import Array
from fedmix.data.federated import Ragged
from fedmix.exchange.settings import Exchange

CHUNK = 1024


class Means(NamedTuple):
    """Averaged inputs (g, ...) and averaged label vectors (g, C)."""

    x: Tensor
    y: Tensor

    @property
    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self)


def split_at_random(count: int, size: int, rng: np.random.Generator) -> list[Array]:
    """Positions 0..count-1 in random groups of `size`; what is left over joins the last group, so
    none is smaller.

    >>> [len(g) for g in split_at_random(10, 4, np.random.default_rng(0))]
    [4, 6]
    """
    return _cut(rng.permutation(count), size)


def split_by_class(labels: Array, size: int, rng: np.random.Generator) -> list[Array]:
    """Groups of one class each, none smaller than `size`: classes with fewer samples share groups,
    or join the last one.
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
    """The groups of a client's samples.

    Where two of `size` cannot be, one holds them all and nothing is drawn.
    """
    if len(y) < 2 * size:
        return [np.arange(len(y))]
    return (
        split_by_class(y.argmax(1).numpy(), size, rng)
        if how == "class"
        else split_at_random(len(y), size, rng)
    )


def clipped(x: Tensor, y: Tensor, how: Exchange) -> tuple[Tensor, Tensor]:
    """Samples scaled down to the bounds on their norms: input and label together, or each to its
    own. NaN counts as 0.
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
) -> Means:
    """The mean of `encode(x)` and of the label vectors `y` over each group, clipped as `how` says.

    Sums are taken in float64, a block of samples at a time.
    """
    order, group = groups.flat, torch.from_numpy(groups.owner)
    size = torch.from_numpy(groups.sizes).double()
    sum_x: Tensor | None = None
    sum_y = torch.zeros(len(groups), y.shape[1], dtype=torch.float64)
    for start in range(0, len(order), CHUNK):
        rows, into = order[start : start + CHUNK], group[start : start + CHUNK]
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


def noised(
    means: Means, counts: Sequence[int], how: Exchange, noises: Iterator[np.random.Generator]
) -> Means:
    """Add noise to the means of several clients, `counts` of each, from their own streams: inputs
    first, then labels.
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
    noise: np.random.Generator,
) -> Means | None:
    """What client `client` with samples (x, y) lets out, or None below the cut-off.

    Nothing else about its data leaves it.
    """
    if len(x) < how.cutoff:
        return None
    size = how.group_size(client, len(x))
    means = average(x, y, Ragged.of(split(y, size, how.split, grouping)), encode, how)
    return noised(means, [len(means.x)], how, iter([noise]))
