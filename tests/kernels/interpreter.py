"""Triton's interpreter, in a process of its own: it runs kernels on a CPU, and must be chosen
before Triton is first imported.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import get_context
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray[Any, Any]


class Interpreter:
    """`interpreter("conv_triton", "conv", *args)` is that function of fedmix.kernels, every kernel
    of it interpreted.
    """

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self.pool = pool

    def __call__(self, module: str, function: str, *args: Any) -> tuple[Tensor, ...]:
        return tuple(
            _tensor(a)
            for a in self.pool.submit(_call, module, function, [_plain(a) for a in args]).result()
        )


@contextmanager
def interpreter() -> Iterator[Interpreter]:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        with patch.dict(os.environ, TRITON_INTERPRET="1"):
            pool.submit(_begin).result()
        yield Interpreter(pool)


def _begin() -> None:
    """Have bf16 treated as on a GPU: Triton 3.6's interpreter holds its bits as integers,
    multiplies these, and cuts.
    """
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    torch.set_num_threads(1)
    product, cast = InterpreterBuilder.create_dot, InterpreterBuilder.cast_impl

    def widened(handle: Any) -> Any:
        if handle.data.dtype != np.uint16:
            return handle
        return TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return product(self, widened(a), widened(b), *rest)

    def cast_impl(self: Any, value: Any, to: Any) -> Any:
        if (value.dtype.scalar, to.scalar) != (tl.float32, tl.bfloat16):
            return cast(self, value, to)
        return TensorHandle(_plain(torch.from_numpy(np.array(value.data)).bfloat16()), tl.bfloat16)

    InterpreterBuilder.create_dot, InterpreterBuilder.cast_impl = create_dot, cast_impl


def _plain(value: Any) -> Any:
    """A tensor as an array; bf16, which numpy does not have, as its bits."""
    if not isinstance(value, Tensor):
        return value
    return (value.view(torch.uint16) if value.dtype == torch.bfloat16 else value).numpy()


def _tensor(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    return (
        torch.from_numpy(value).view(torch.bfloat16)
        if value.dtype == np.uint16
        else torch.from_numpy(value)
    )


def _call(module: str, function: str, args: list[Any]) -> tuple[Array, ...]:
    result = getattr(import_module(f"fedmix.kernels.{module}"), function)(
        *[_tensor(a) for a in args]
    )
    return tuple(_plain(r) for r in (result if isinstance(result, tuple) else (result,)))
