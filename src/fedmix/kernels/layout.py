"""Channels-last layout of images, which convolutions and pooling read and write."""

from torch import Tensor


def channels_last(t: Tensor) -> Tensor:
    """(..., C, H, W) as contiguous (..., H, W, C)."""
    return t.movedim(-3, -1).contiguous()


def channels_first(t: Tensor) -> Tensor:
    """(..., H, W, C) as a view (..., C, H, W)."""
    return t.movedim(-1, -3)
