"""Precision of products on a GPU: tf32 (the default), float32, or bf16 (the fastest).

tf32 has 10 bits of mantissa, bf16 has 7. With bf16, convolutions and linear layers also read and
write 16 bits: activations, their gradients and copies of the weights. Products are summed in
float32, and weights, momentum and their updates are float32 in any case. A CPU always uses float32.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, cast, get_args

import torch

from fedmix.core.errors import BadInput

Precision = Literal["tf32", "float32", "bf16"]
_current: Precision = "float32"


def current() -> Precision:
    """The precision in use."""
    return _current


def stored() -> torch.dtype:
    """The type that convolutions on a GPU read and write in the current precision."""
    return torch.bfloat16 if _current == "bf16" else torch.float32


def called(name: str) -> Precision:
    """Return the name if it is a known precision; raise BadInput otherwise."""
    for known in get_args(Precision):
        if isinstance(name, str) and name == known:
            return known
    raise BadInput(f"precision {name!r} is unknown; choose one of {', '.join(get_args(Precision))}")


def check_device(precision: Precision, device: torch.device) -> None:
    """Raise BadInput for bf16 on a GPU without hardware for it."""
    if (
        precision == "bf16"
        and device.type == "cuda"
        and torch.cuda.get_device_capability(device) < (8, 0)
    ):
        raise BadInput(
            "precision 'bf16' needs a GPU of compute capability 8.0 or more, which "
            f"{torch.cuda.get_device_name(device)} is not; choose float32"
        )


@contextmanager
def arithmetic(precision: Precision) -> Iterator[None]:
    """Use this precision inside the block; what follows, such as an average or a test, is exact."""
    global _current
    called(precision)
    before, held = _current, _flags()
    _current = precision
    try:
        for backend, flag, _ in held:
            setattr(backend, flag, VALUES[flag][precision != "float32"])
        with torch.autocast(
            "cuda", torch.bfloat16, enabled=precision == "bf16" and torch.cuda.is_available()
        ):
            yield
    finally:
        _current = before
        for backend, flag, value in held:
            setattr(backend, flag, value)


VALUES: dict[str, tuple[Any, Any]] = {
    "allow_tf32": (False, True),
    "fp32_precision": ("ieee", "tf32"),
}


def _flags() -> list[tuple[Any, str, Any]]:
    """PyTorch's flags for tf32, with their values.

    It has older and newer flags, and refuses the older ones if someone set a newer one.
    """
    matmul, cudnn = torch.backends.cuda.matmul, cast(Any, torch.backends.cudnn)
    try:
        return [(b, "allow_tf32", b.allow_tf32) for b in (matmul, cudnn)]
    except RuntimeError:
        return [(b, "fp32_precision", b.fp32_precision) for b in (matmul, cudnn.conv, cudnn.rnn)]
