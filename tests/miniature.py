"""Small copies of the hub's datasets, in its layout, with content that can be learned."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

Array = np.ndarray[Any, Any]
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
WORDS = (
    "the king shall speak no more; O gentle night, who calls? 'Tis I, Lord! come [aside] and "
    "stay: 'twas not so."
)


def write_mirror(root: Path, *names: str) -> Path:
    """Write the named datasets (all four if none is named) under `root`, which is returned."""
    writers = {
        "cifar10": cifar10,
        "cifar100": cifar100,
        "femnist": femnist,
        "shakespeare": shakespeare,
    }
    for name in names or writers:
        writers[name](root)
    return root


def write_table(
    root: Path, repo: str, config: str, split: str, columns: dict[str, Any], part: int = 0
) -> Path:
    path = root / repo / config / split / f"{part:04}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=200)
    return path


def encoded(images: Sequence[Array] | Array) -> Any:
    """Images as the hub's column type: PNG bytes."""
    rows = []
    for image in images:
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "PNG", compress_level=1)
        rows.append({"bytes": buffer.getvalue(), "path": None})
    return pa.array(rows, IMAGE)


def prototypes(classes: int, size: int, channels: int, rng: np.random.Generator) -> Array:
    """A coarse random pattern for each class, values 0..255."""
    coarse = rng.integers(0, 256, (classes, 4, 4, channels))
    return np.kron(coarse, np.ones((1, size // 4, size // 4, 1), np.int64))


def cifar10(root: Path) -> None:
    rng = np.random.default_rng(10)
    patterns = prototypes(10, 32, 3, rng)
    for split, count in (("train", 600), ("test", 100)):
        y = rng.permutation(np.arange(count) % 10)
        images = np.clip(patterns[y] + rng.normal(0, 40, (count, 32, 32, 3)), 0, 255).astype(
            np.uint8
        )
        write_table(
            root, "uoft-cs/cifar10", "plain_text", split, {"img": encoded(images), "label": y}
        )


def cifar100(root: Path) -> None:
    rng = np.random.default_rng(100)
    patterns = prototypes(100, 32, 3, rng)
    for split, count in (("train", 1000), ("test", 200)):
        y = rng.permutation(np.arange(count) % 100)
        images = np.clip(patterns[y] + rng.normal(0, 40, (count, 32, 32, 3)), 0, 255).astype(
            np.uint8
        )
        labels = {"fine_label": y, "coarse_label": y // 5}
        write_table(root, "uoft-cs/cifar100", "cifar100", split, {"img": encoded(images), **labels})


def femnist(root: Path) -> None:
    """12 writers of 25 to 39 images each, dark ink on white paper; the rows of a writer are not
    together.
    """
    rng = np.random.default_rng(62)
    ink = prototypes(62, 28, 1, rng)[..., 0] // 2
    writer = rng.permutation(np.repeat(np.arange(12), 25 + np.arange(12) * 14 // 11))
    y = rng.integers(0, 62, len(writer))
    strength = 0.6 + 0.04 * writer[:, None, None]  # a writer's hand
    images = np.clip(255 - strength * ink[y] - rng.normal(0, 10, (len(y), 28, 28)), 0, 255).astype(
        np.uint8
    )
    names = np.array([f"f{3000 + w}_{w:02}" for w in range(12)])
    columns = {"writer_id": names[writer], "hsf_id": np.zeros(len(y), np.int64), "character": y}
    write_table(root, "flwrlabs/femnist", "default", "train", {"image": encoded(images), **columns})


def shakespeare(root: Path) -> None:
    """8 roles of 260 to 500 windows each, in two files; sliding windows over a text of random
    words.
    """
    rng = np.random.default_rng(80)
    who, x, y = [], [], []
    for role, windows in enumerate([260, 300, 340, 380, 410, 440, 470, 500]):
        text = " ".join(rng.choice(WORDS.split(), 200))[: windows + 80]
        who += [f"PLAY_{'HGFEDCBA'[role]}"] * windows
        x += [text[i : i + 80] for i in range(windows)]
        y += [text[i + 80] for i in range(windows)]
    half = 1000
    for part, rows in enumerate((slice(0, half), slice(half, None))):
        columns = {
            "character_id": pa.array(who[rows]).dictionary_encode(),
            "x": x[rows],
            "y": y[rows],
        }
        write_table(root, "flwrlabs/shakespeare", "default", "train", columns, part)
