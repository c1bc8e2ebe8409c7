"""Images in parquet tables, as the hub stores them, and their normalisation."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedmix.core.errors import BadInput, first_line
from fedmix.core.types import Array
from fedmix.data.cache import npy
from fedmix.data.tables import INSTALL, batches, count, damaged, labels, reading
from fedmix.data.transforms import Images

FORMATS = ("PNG", "JPEG")  # the hub's formats; Pillow would accept dozens
Normalisation = Literal["standard", "unit"]
Moments = tuple[tuple[float, ...], tuple[float, ...]]


def normaliser(normalise: str, moments: Moments, pad: int = 0, invert: bool = False) -> Images:
    """Make the transform: "standard" normalises by mean and deviation, "unit" keeps [0, 1].

    Raises BadInput for another `normalise`.
    """
    if normalise not in ("standard", "unit"):
        raise BadInput(f"no normalisation {normalise!r}; use 'standard' or 'unit'")
    mean, std = (
        moments if normalise == "standard" else ((0.0,) * len(moments[0]), (1.0,) * len(moments[1]))
    )
    return Images(mean, std, pad, invert)


def pixels(path: Path, column: Any, shape: tuple[int, int, int]) -> Array:
    """Decode images of one size (height, width, channels) to uint8; raise DataError for others."""
    try:
        from PIL import Image
    except ImportError as error:
        raise BadInput(INSTALL) from error
    import pyarrow

    if not pyarrow.types.is_struct(column.type) or column.type.get_field_index("bytes") < 0:
        raise damaged(path, f"images are {column.type}, not encoded bytes")
    height, width, channels = shape
    out = np.empty((len(column), *shape), np.uint8)
    with reading(path):
        encodings = column.field("bytes").to_pylist()
    for i, encoded in enumerate(encodings):
        try:
            with Image.open(io.BytesIO(encoded or b""), formats=FORMATS) as opened:
                size = opened.size
                if size == (width, height):  # checked before any pixel is decoded
                    out[i] = np.asarray(opened.convert("L" if channels == 1 else "RGB")).reshape(
                        shape
                    )
        except Exception as error:  # Pillow raises many types of errors for damaged bytes
            raise damaged(path, f"an image cannot be decoded ({first_line(error)})") from error
        if size != (width, height):
            raise damaged(path, f"an image is {size[0]}x{size[1]}, not {width}x{height}")
    return out


def save_images(
    files: Sequence[Path],
    folder: Path,
    prefix: str,
    image: str,
    shape: tuple[int, int, int],
    label: str,
    classes: int,
) -> None:
    """Decode images and labels, batch by batch, into <prefix>x.npy and <prefix>y.npy."""
    rows = count(files)
    with (
        npy(folder / f"{prefix}x.npy", "u1", (rows, *shape)) as x,
        npy(folder / f"{prefix}y.npy", "i8", (rows,)) as y,
    ):
        for path, batch in batches(files, [image, label]):
            x(pixels(path, batch.column(image), shape))
            y(labels(path, batch.column(label), classes))
