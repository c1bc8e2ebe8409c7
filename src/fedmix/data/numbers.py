"""Arrays, tensors and lists of numbers as arrays that torch can calculate with."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmix.core.errors import BadInput, described
from fedmix.core.types import Array


def as_array(values: Any, what: str, dtype: type | None = None) -> Array:
    """Convert an array, a tensor or a sequence to an array of type `dtype`.

    Without `dtype`, the array keeps its type if torch can calculate with it. Anything else raises
    BadInput: numpy would ask a Dataset for samples without end, and turn dates into numbers.
    """
    if isinstance(values, Sequence) and not isinstance(values, str | bytes):
        values = list(values)  # a column of Hugging Face's, too
    elif not hasattr(values, "__array__"):
        raise BadInput(
            f"{what} are {described(values)}; give an array or a tensor (of a Dataset, stack the "
            "samples)"
        )
    try:
        array = to_numpy(values)
    except (ValueError, TypeError, RuntimeError) as error:
        if "inhomogeneous" in str(error):
            raise BadInput(
                f"{what} have different lengths; make them alike, as by padding"
            ) from error
        reason = str(error).partition(". ")[0].rstrip(".")
        raise BadInput(f"{what} cannot be made an array of numbers ({reason})") from error
    if not array.ndim:
        raise BadInput(f"{what} are a single number; give an array with one entry for each sample")
    if np.ma.is_masked(values):
        raise BadInput(
            f"{what} are masked in places, and what is masked would be used; clean the data first"
        )
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind not in "biuf":
        held = "text" if kind in "SU" else array.dtype.name
        raise BadInput(
            f"{what} cannot be made an array of numbers (they are {held}); turn them into integers "
            "or floats first"
        )
    if kind == "u" and size > 1:  # torch does not calculate with these
        native: Any = np.int64 if not array.size or array.max() < 2**63 else np.float64
    else:
        native = array.dtype.newbyteorder("=") if size <= 8 else np.float64
    try:
        with np.errstate(over="raise"):
            return array.astype(dtype or native, copy=False)
    except FloatingPointError:
        raise BadInput(f"{what} hold numbers beyond float32; scale the data first") from None


def to_numpy(values: Any) -> Array:
    """Return values as an array, also tensors on a GPU, of bfloat16, or with gradients.

    Raises:
        ValueError, TypeError, RuntimeError: They are no array.
    """
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = values.float() if values.dtype == torch.bfloat16 else values
    elif isinstance(values, list | tuple) and any(isinstance(v, Tensor) for v in values):
        values = [to_numpy(v) for v in values]
    return np.asarray(values)


def to_tensor(array: Array) -> Tensor:
    """Return an array as a tensor to read from.

    Those of pandas must not be written to, which torch would warn of.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(np.ascontiguousarray(array))
