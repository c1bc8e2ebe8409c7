"""Shakespeare (LEAF, Caldas et al. 2018): next-character prediction; each role is a client."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedmix.core.errors import BadInput
from fedmix.core.registry import DATA
from fedmix.core.types import Array
from fedmix.data.cache import cached, npy
from fedmix.data.federated import FederatedData
from fedmix.data.hub import parquet
from fedmix.data.natural import choose, gather, save_owners
from fedmix.data.preset import Preset
from fedmix.data.ragged import Ragged
from fedmix.data.settings import check_settings
from fedmix.data.tables import batches, count, damaged, reading
from fedmix.data.transforms import OneHot

LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
UNKNOWN = len(LETTERS)  # 80, the code of any other character
CLASSES = 84  # the paper's number; 81..83 are reserved
WINDOW = 80
GAP = WINDOW - 1  # window i reads letters i..i+79, so windows less than 80 apart overlap


@DATA.add(
    "shakespeare",
    "next-character prediction by speaking role, from the hub",
    preset=Preset("charlstm", 60, 2, 50, 0.5, 0.1, 0.1, 0.001, hidden_layer=1),
)
def shakespeare(
    clients: int = 60,
    *,
    least: int = 200,
    cap: int | None = None,
    train_share: float = 0.8,
    seed: int = 0,
    root: str | Path | None = None,
    cache: str | Path | None = None,
) -> FederatedData:
    """Shakespeare: roles drawn by `seed` among those with at least `least` windows.

    A window is 80 characters, its label the one that follows. A role's windows stay in the order of
    its text: the first train, the last test, and 79 between them are left out, so that no character
    is an input on both sides.

    Args:
        clients: Number of roles.
        least: Smallest number of windows of a role.
        cap: Use only the first `cap` windows of a role; None: all.
        train_share: Fraction of a role's windows (without those left out) that trains.
        seed: Seed of the roles.
        root: Folder with the hub's files (`fedmix.data.hub`).
        cache: Folder for decoded arrays (`fedmix.data.cache`).

    Raises:
        BadInput: A setting is wrong, or there are too few roles.
        DataError: A file is missing or damaged, or cannot be downloaded.
    """
    check_settings(**locals())
    for setting, value in (("least", least), ("cap", cap)):
        if value is not None and value < GAP + 2:
            raise BadInput(
                f"shakespeare: {setting} is {value}; a role needs {GAP + 2} windows to be split"
            )
    files = parquet("flwrlabs/shakespeare", "default", "train", root, cache)

    def decode(folder: Path) -> None:
        _save_text(files, folder)
        save_owners(files, folder, "character_id")

    arrays = cached("shakespeare", files, decode, cache)
    rows = Ragged.by_owner(arrays["owner"], len(arrays["names"]))
    train, test = [], []
    for role in choose(rows.sizes >= least, clients, seed, "shakespeare"):
        windows = rows[role][:cap]
        usable = len(windows) - GAP
        cut = min(max(1, round(train_share * usable)), usable - 1)
        train.append(windows[:cut])
        test.append(windows[cut + GAP :])
    rows_of = Ragged.of(train), Ragged.of(test)
    return gather(arrays["x"], arrays["y"], *rows_of, CLASSES, OneHot(CLASSES), "shakespeare")


def encode(text: str) -> Array:
    """Encode characters as their positions in `LETTERS`, others as 80.

    >>> encode("\\nAz}~").tolist()
    [0, 25, 78, 79, 80]
    """
    table = np.full(129, UNKNOWN, np.uint8)
    table[[ord(letter) for letter in LETTERS]] = np.arange(len(LETTERS))
    codes: Array = table[np.minimum(np.frombuffer(text.encode("utf-32-le"), "<u4"), 128)]
    return codes


def _save_text(files: Sequence[Path], folder: Path) -> None:
    rows = count(files)
    with (
        npy(folder / "x.npy", "u1", (rows, WINDOW)) as x,
        npy(folder / "y.npy", "i8", (rows,)) as y,
    ):
        for path, batch in batches(files, ["x", "y"]):
            x(_letters(path, batch.column("x"), WINDOW))
            y(_letters(path, batch.column("y"), 1)[:, 0])


def _letters(path: Path, column: Any, length: int) -> Array:
    with reading(path):
        texts = column.to_pylist()
    wrong = next((text for text in texts if not isinstance(text, str) or len(text) != length), "")
    if wrong != "":
        raise damaged(path, f"a text is not of {length} letters: {repr(wrong)[:200]}")
    return encode("".join(texts)).reshape(-1, length)
