"""Conversion of stored samples to model inputs: first to units, then normalised.

Means are taken and exchanged in units. Both steps work on tensors of any leading shape, on any
device, and draw nothing: the plan holds the offsets of crops and flips.
"""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from fedmix.core.errors import BadInput
from fedmix.core.validation import flag, number, whole

MOST_PAD = 127  # offsets of crops are bytes, and up to twice the pad


@runtime_checkable
class Transform(Protocol):
    """How stored samples become model inputs.

    `pad` is the margin of random crops; 0 means no augmentation.
    """

    @property
    def pad(self) -> int: ...

    def units(self, raw: Tensor) -> Tensor:
        """Stored samples in the units in which means are taken and exchanged, as float32.

        Codes, which have no means, may stay integers.
        """

    def normalise(self, x: Tensor) -> Tensor:
        """Model inputs from samples in units."""

    def noise(self, shape: tuple[int, ...], rng: np.random.Generator) -> Tensor:
        """Random samples in units that say nothing about any data; `shape` includes the number."""


@dataclass(frozen=True)
class Plain:
    """Arrays that the model takes as they are: as float32, and integers as int64.

    Integers are codes that a model looks up. Numbers to multiply must be floats.
    """

    pad: int = 0

    def __post_init__(self) -> None:
        _check_pad(self)

    def units(self, raw: Tensor) -> Tensor:
        codes = not raw.is_floating_point() and raw.dtype != torch.bool
        return raw.to(torch.int64 if codes else torch.float32)

    def normalise(self, x: Tensor) -> Tensor:
        return x

    def noise(self, shape: tuple[int, ...], rng: np.random.Generator) -> Tensor:
        return torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))


@dataclass(frozen=True)
class Images:
    """uint8 images (..., H, W, C) as (..., C, H, W): pixels in [0, 1], then standardised.

    Args:
        mean: Mean of each channel, in [0, 1].
        std: Deviation of each channel.
        pad: If above 0, training images are zero-padded by it, cropped back to size and flipped at
            the offsets that the plan drew.
        invert: Whether to invert pixels, so that ink on white paper becomes bright on black.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    pad: int = 0
    invert: bool = False

    def __post_init__(self) -> None:
        _check_pad(self)
        flag("Images: invert", self.invert)
        for name in ("mean", "std"):
            moments = getattr(self, name)
            if not isinstance(moments, tuple | list) or len(moments) != len(self.mean):
                raise BadInput(
                    f"Images: {name}={moments!r} is no tuple of one number for each channel, as "
                    "many as `mean`"
                )
            for value in moments:
                if not abs(number(f"Images: {name}", value)) < math.inf or (
                    name == "std" and not value > 0
                ):
                    raise BadInput(
                        f"Images: {name}={moments!r} must be finite, and a deviation positive"
                    )

    def units(self, raw: Tensor) -> Tensor:
        x = raw.movedim(-1, -3).to(torch.float32) / 255
        return 1 - x if self.invert else x

    def normalise(self, x: Tensor) -> Tensor:
        channels = zip(x.unbind(-3), self.mean, self.std, strict=True)
        return torch.stack([(channel - mean) / std for channel, mean, std in channels], -3)

    def noise(self, shape: tuple[int, ...], rng: np.random.Generator) -> Tensor:
        """Normal noise that is standard after normalisation."""
        mean, std = (np.asarray(v, np.float32)[:, None, None] for v in (self.mean, self.std))
        return torch.from_numpy(mean + std * rng.standard_normal(shape, dtype=np.float32))


@dataclass(frozen=True)
class OneHot:
    """Integer sequences (..., T) as one-hot vectors (..., T, size).

    A mean of one-hot vectors is exact under any linear embedding.
    """

    size: int
    pad: int = 0

    def __post_init__(self) -> None:
        whole("OneHot: size", self.size)
        _check_pad(self)

    def units(self, raw: Tensor) -> Tensor:
        return one_hot(raw, self.size)

    def normalise(self, x: Tensor) -> Tensor:
        return x

    def noise(self, shape: tuple[int, ...], rng: np.random.Generator) -> Tensor:
        """Random characters."""
        return self.units(torch.from_numpy(rng.integers(0, self.size, shape[:-1])))


def _check_pad(transform: Transform) -> None:
    name = type(transform).__name__
    if whole(f"{name}: pad", transform.pad, 0) > MOST_PAD:
        raise BadInput(f"{name}: pad={transform.pad} is more than {MOST_PAD}; use a smaller margin")


def one_hot(labels: Tensor, size: int) -> Tensor:
    """Integers (...) as one-hot vectors (..., size).

    Like `torch.nn.functional.one_hot`, but it never waits for the device.
    """
    return (labels[..., None] == torch.arange(size, device=labels.device)).to(torch.float32)


def crop_and_flip(images: Tensor, draws: Tensor, pad: int) -> Tensor:
    """Crop and flip images (n, C, H, W) after zero-padding them by `pad`.

    `draws` is (n, 3): row and column offsets in 0..2·pad, and 1 to mirror the image or 0. An offset
    of `pad` leaves the image in place.
    """
    n, _, height, width = images.shape
    padded = torch.nn.functional.pad(images, (pad, pad, pad, pad))
    draws = draws.long()
    rows = draws[:, 0, None] + torch.arange(height, device=images.device)
    columns = torch.arange(width, device=images.device).expand(n, width)
    columns = draws[:, 1, None] + torch.where(draws[:, 2, None] == 1, width - 1 - columns, columns)
    sample = torch.arange(n, device=images.device)
    return padded.permute(0, 2, 3, 1)[
        sample[:, None, None], rows[:, :, None], columns[:, None, :]
    ].permute(0, 3, 1, 2)
