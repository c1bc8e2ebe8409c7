"""Compilation of the stacked local step, and what to do where that fails."""

import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")
RECOMPILE_LIMIT = 256  # one for each width of each run in a process; torch's own limit of 8 would end in a silent crawl


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """`function` compiled for each shape it meets; as it was, with one warning, where there is no working compiler."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, RECOMPILE_LIMIT)
    fast = torch.compile(function, dynamic=False)
    works = True

    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal works
        if works:
            try:
                return fast(*args, **kwargs)
            except (torch._dynamo.exc.TorchDynamoException, torch._inductor.exc.InductorError) as error:
                works = False
                reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
                warnings.warn(f"the local step could not be compiled ({reason}); going on without, more slowly", stacklevel=2)
        return function(*args, **kwargs)

    return run
