"""Images channels last in memory, as convolutions and pooling read and write them, with any axes
before (C, H, W).
"""

from torch import Tensor


def channels_last(t: Tensor) -> Tensor:
    """(..., C, H, W) as (..., H, W, C), without gaps."""
    return t.movedim(-3, -1).contiguous()


def channels_first(t: Tensor) -> Tensor:
    """(..., H, W, C) seen as (..., C, H, W)."""
    return t.movedim(-1, -3)
