"""Devices by name, and the cores of this machine."""

import os
from textwrap import shorten

import torch

from fedmix.core.errors import BadInput, first_line
from fedmix.core.validation import instance


def device_named(name: str | torch.device) -> torch.device:
    """The device of that name, made the current one if it is a GPU.

    Where several processes train together on this machine, "cuda" is another GPU for each.

    Raises:
        BadInput: where there is no such device, or it holds no values, such as "meta".
    """
    instance("device", name, (str, torch.device), "give its name, such as 'cpu'")
    try:
        if str(name) == "cuda" and os.environ.get("LOCAL_RANK", "").isdigit():
            name = f"cuda:{int(os.environ['LOCAL_RANK']) % max(1, torch.cuda.device_count())}"
        probe = torch.zeros(1, device=name)
        probe.item()  # fails on "meta"
        if probe.is_cuda:
            torch.cuda.set_device(probe.device)  # kernels and graphs go to the current one
        return probe.device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = shorten(first_line(error).partition(". ")[0], 100, placeholder=" ...")
        raise BadInput(
            f"device {str(name)!r} cannot be used ({reason}); choose 'cpu', or 'cuda' where there "
            "is a GPU"
        ) from error


def cores() -> int:
    """Number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
