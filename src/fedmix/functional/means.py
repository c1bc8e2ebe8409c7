"""Means of one's own samples: what leaves a client, and what that guarantees."""

import math
import secrets
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, default_collate

from fedmix.core.errors import BadInput, FedmixWarning, described
from fedmix.core.rng import SecretNoise
from fedmix.core.types import Array
from fedmix.core.validation import flag, shown, whole
from fedmix.exchange import Exchange, release
from fedmix.exchange.one_client import CHUNK
from fedmix.exchange.pool import to_shares
from fedmix.exchange.settings import GroupSize
from fedmix.functional.pool import MeanPool
from fedmix.privacy.accounting import DELTA, Guarantee, Level, Neighbours, guarantee, why_none


class Released(MeanPool):
    """One's own means, with what is needed to say what they guarantee.

    Only `x` and `y` are in `to_bytes`.
    """

    def __init__(
        self, x: Tensor, y: Tensor, how: Exchange, smallest: int, nonnegative: bool, secret: bool
    ) -> None:
        super().__init__(x, y)
        self.how, self.smallest = how, smallest
        self._nonnegative, self._secret = nonnegative, secret

    def guarantee(
        self,
        delta: float = DELTA,
        *,
        releases: int = 1,
        neighbours: Neighbours = "replace",
        level: Level = "sample",
    ) -> Guarantee:
        """Return the (ε, δ) of these means, from `fedmix.privacy.guarantee`.

        It holds if each person has one sample, no other client has it, and the bounds and the noise
        were chosen without looking at the data. What else leaves, such as weights, is not covered.

        Args:
            delta: δ.
            releases: How often means of these samples leave, each time with new noise.
            neighbours: Whether a sample is replaced, or added or removed.
            level: Whether one "sample" or one "client" is protected.

        Returns:
            The guarantee. If there is none it is false, and says why.

        Raises:
            BadInput: An argument is out of range, or dp-accounting is not installed.
        """
        if not self._secret:
            reason = "the noise came from a seed, and who knows it can take the noise away"
            return Guarantee(math.inf, delta, math.inf, level, neighbours, releases, reason)
        return guarantee(
            self.how, self.smallest, delta, releases=releases, neighbours=neighbours, level=level,
            nonnegative=self._nonnegative,
        )  # fmt: skip


def means_of(
    x: Any,
    y: Any = None,
    *,
    m: GroupSize = Exchange.m,
    classes: int | None = None,
    noise: float = Exchange.noise,
    clip: float | None = Exchange.clip,
    label_clip: float | None = Exchange.label_clip,
    label_noise: float | None = Exchange.label_noise,
    split: Literal["random", "class"] = Exchange.split,
    nonnegative: bool = False,
    seed: int | None = None,
) -> Released:
    """Return means of samples: split into groups of m, clipped, averaged, with noise.

    Give inputs as the network gets them, without augmentation: means, `clip` and `noise` are in
    these units. Groups and noise are drawn anew from the operating system's randomness, so that
    nobody can subtract the noise. Send each client's means once: whoever gets two releases of the
    same samples knows more (`guarantee(releases=2)`).

    Args:
        x: Inputs (n, ...), as a tensor or an array; or a Dataset or a DataLoader of (input, target)
            pairs. These two are read twice, a part at a time. A loader's order and batches do not
            matter; the samples are those that its sampler gives.
        y: Class labels (n,), label vectors (n, C), or targets of a regression; not with a Dataset.
        m: How many samples are averaged into one mean: a number, a fraction, or "all".
        classes: The number of classes of all clients together; by default the largest label of
            these samples plus one.
        noise: As in `fedmix.Exchange`, and so are `clip`, `label_clip`, `label_noise` and `split`.
        clip: The bound on each sample's norm.
        label_clip: A bound on labels of their own.
        label_noise: The deviation of their noise.
        split: Whether groups are made at "random" or by "class".
        nonnegative: Whether no input is ever negative, which halves μ² of the guarantee; checked.
        seed: Groups and noise from a seed, for tests: whoever knows it can take the noise away, so
            that nothing is guaranteed.

    Raises:
        BadInput: The samples are no such samples, or too few, or a setting is out of range.

    >>> x, y = torch.rand(100, 8), torch.randint(10, (100,))
    >>> mine = means_of(x, y, m=20, classes=10, noise=0.5, clip=2.0)
    >>> mine
    Released(5 means of shape (8,), label vectors of 10, on cpu)
    >>> print(mine.guarantee(delta=1e-5))
    (1.56, 1e-05)-differential privacy of the means for one sample replaced, over one release.
    """
    how = Exchange(
        m=m, split=split, noise=noise, clip=clip, label_clip=label_clip, label_noise=label_noise
    )
    flag("nonnegative", nonnegative)
    if classes is not None:
        whole("classes", classes)
    if seed is not None:
        whole("seed", seed, least=0)
    samples = _samples(x, y)
    labels, of_classes = _label_vectors(samples.labels(), classes)
    count = len(labels)
    size = int(how.group_sizes(np.array([count]))[0])
    if not 0 < size <= count:
        raise BadInput(f"m={shown(m)} is more than the {count} samples; lower it, or use 'all'")
    if split == "class" and not of_classes:
        raise BadInput("split='class' needs class labels; use split='random' for a regression")
    if size == 1 and why_none(how):
        warnings.warn(
            FedmixWarning(
                "means of one sample each are these samples, and here they are not protected: "
                f"{why_none(how)}; raise m, or set clip and noise"
            ),
            stacklevel=2,
        )

    def encode(rows: Array) -> Tensor:
        return _inputs(samples.inputs(rows), nonnegative)

    grouping = np.random.default_rng(secrets.randbits(128) if seed is None else [seed, 0])
    drawn = SecretNoise() if seed is None else np.random.default_rng([seed, 1])
    means = release(0, np.arange(count), labels, how, encode, grouping, drawn)
    assert means is not None
    # clipping and noise take labels off the simplex, where cross-entropy has no lower bound
    mean_y = to_shares(means.y) if of_classes and how.clip is not None else means.y
    known = nonnegative and bool((labels >= 0).all())
    return Released(means.x.cpu(), mean_y, how, size, known, seed is None)


@dataclass(frozen=True)
class _Samples:
    """Functions that read inputs of some samples, and the targets of all."""

    inputs: Callable[[Array], Any]
    labels: Callable[[], Any]


def _samples(x: Any, y: Any) -> _Samples:
    if not isinstance(x, Dataset | DataLoader):
        if y is None:
            raise BadInput(
                f"x is {described(x)} and y is missing; give both, or a Dataset or DataLoader"
            )
        inputs, labels = _tensor("x", x), _tensor("y", y)
        if inputs.ndim < 2 or len(inputs) != len(labels) or not len(inputs):
            raise BadInput(
                f"x has shape {tuple(inputs.shape)} and y {tuple(labels.shape)}; give inputs "
                "(n, ...) and one target for each, one at least"
            )
        return _Samples(lambda rows: inputs[torch.from_numpy(rows)], lambda: labels)
    if y is not None:
        raise BadInput("a Dataset or DataLoader has its own targets; leave y out")
    return _of_dataset(x)


def _of_dataset(given: Any) -> _Samples:
    loader = given if isinstance(given, DataLoader) else None
    dataset: Any = given if loader is None else loader.dataset
    if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise BadInput(
            f"{type(dataset).__name__} cannot be read by position; collect its samples and give x "
            "and y"
        )
    collate: Any = default_collate
    rows = np.arange(len(dataset))
    if loader is not None:
        if loader.batch_sampler is None:
            raise BadInput("this DataLoader makes no batches (batch_size=None); give its Dataset")
        collate = loader.collate_fn
        given_rows = [np.atleast_1d(batch) for batch in loader.batch_sampler]
        # each sample once, whatever the sampler repeats: its weight in a mean is then 1/m
        rows = np.unique(np.concatenate(given_rows)) if given_rows else rows[:0]
    if not len(rows):
        raise BadInput("this data set has no samples")

    def pairs(positions: Array) -> Any:
        both = collate([dataset[int(rows[i])] for i in positions])
        if not isinstance(both, list | tuple) or len(both) != 2:
            raise BadInput(
                f"this data set gives {type(both).__name__}, not pairs of input and target; wrap it"
            )
        return both

    def labels() -> Tensor:
        starts = range(0, len(rows), CHUNK)
        blocks = (np.arange(s, min(s + CHUNK, len(rows))) for s in starts)
        return torch.cat([_tensor("y", pairs(block)[1]) for block in blocks])

    return _Samples(lambda positions: pairs(positions)[0], labels)


def _tensor(name: str, value: Any) -> Tensor:
    if isinstance(value, np.ndarray):
        try:
            # of any byte order, reversed, or read-only, as tables and memory maps are
            value = torch.from_numpy(np.require(value, value.dtype.newbyteorder("="), ["C", "W"]))
        except TypeError as error:
            raise BadInput(f"{name} is an array of {value.dtype}; give numbers") from error
    if not isinstance(value, Tensor):
        raise BadInput(f"`{name}` is {described(value)}; give a tensor or an array")
    return value.detach()


def _inputs(x: Any, nonnegative: bool) -> Tensor:
    """Inputs that can be averaged; raise BadInput for others, without their values."""
    inputs = _tensor("x", x)
    if not inputs.is_floating_point():
        kind = str(inputs.dtype).removeprefix("torch.")
        raise BadInput(
            f"x is {kind}; give inputs as the network gets them, "
            "floating-point: pixels as float, token ids as one-hot vectors or embeddings"
        )
    if not torch.isfinite(inputs).all():
        raise BadInput("x holds NaN or infinity; clean it first")
    if nonnegative and (inputs < 0).any():
        raise BadInput("x holds negative values; leave nonnegative out")
    return inputs


def _label_vectors(y: Tensor, classes: int | None) -> tuple[Tensor, bool]:
    """Targets as vectors, on the CPU, and whether they are shares of classes."""
    y = y.cpu()
    if y.is_floating_point():
        vectors = y[:, None] if y.ndim == 1 else y
        if vectors.ndim != 2 or (classes is not None and vectors.shape[1] != classes):
            wanted = "" if classes is None else f" and classes={classes}"
            raise BadInput(
                f"y is floating-point, of shape {tuple(y.shape)}{wanted}; give class labels as "
                "whole numbers (n,), label vectors (n, classes) or targets (n, values)"
            )
        if not torch.isfinite(vectors).all():
            raise BadInput("y holds NaN or infinity; clean it first")
        sums = vectors.sum(1)
        shares = bool((vectors >= 0).all() and torch.allclose(sums, torch.ones_like(sums), 0, 1e-3))
        return vectors.float(), shares and vectors.shape[1] > 1
    if y.dtype == torch.bool or y.is_complex() or y.ndim != 1:
        raise BadInput(
            f"y of type {str(y.dtype).removeprefix('torch.')} and shape {tuple(y.shape)} are no "
            "class labels; give whole numbers (n,), or label vectors"
        )
    low, high = (int(end) for end in torch.aminmax(y.long()))
    width = high + 1 if classes is None else classes
    if low < 0:
        raise BadInput("y holds negative labels; leave such samples out, and count from 0")
    if high >= width:
        raise BadInput(f"y holds labels outside 0..{width - 1}; give classes= their number")
    return F.one_hot(y.long(), width).float(), True
