"""FEMNIST (LEAF, Caldas et al. 2018): handwritten characters; every writer is a client."""

import zlib
from pathlib import Path

import numpy as np

from fedmix.core.registry import DATA
from fedmix.core.rng import stream
from fedmix.data.cache import cached
from fedmix.data.federated import FederatedData
from fedmix.data.hub import parquet
from fedmix.data.images import Normalisation, normaliser, save_images
from fedmix.data.natural import choose, gather, save_owners
from fedmix.data.partition import share
from fedmix.data.preset import Preset
from fedmix.data.ragged import Ragged
from fedmix.data.settings import check_settings

CLASSES = 62  # 0-9, A-Z, a-z

# Mean and deviation of inverted pixels, computed from 53,880 images of 328 writers.
MOMENTS = ((0.0384,), (0.1639,))


@DATA.add(
    "femnist",
    "handwritten characters by writer, 62 classes, from the hub",
    pictures=True,
    # LeNet-5 comes nearest to the paper's row with ink in [0, 1] and PyTorch's initial weights.
    preset=Preset(
        "lenet", 10, 10, 200, 0.8, 0.2, 0.2, 0.1, initialise="torch",
        data={"normalise": "unit"},
    ),
)  # fmt: skip
def femnist(
    clients: int = 100,
    *,
    least: int = 1,
    local_share: float = 1.0,
    normalise: Normalisation = "standard",
    test_share: float = 0.1,
    seed: int = 0,
    root: str | Path | None = None,
    cache: str | Path | None = None,
) -> FederatedData:
    """FEMNIST: writers drawn by `seed` among those with at least `least` training images.

    Args:
        clients: Number of writers.
        least: Smallest number of training images of a writer.
        local_share: Fraction of its training images that each client keeps.
        normalise: "standard", or "unit" for ink in [0, 1].
        test_share: Fraction of each writer's images (at least one) that is held out, at random.
        seed: Seed of the writers and of the test images.
        root: Folder with the hub's files (`fedmix.data.hub`).
        cache: Folder for decoded arrays (`fedmix.data.cache`).

    Raises:
        BadInput: A setting is wrong, or there are too few writers.
        DataError: A file is missing or damaged, or cannot be downloaded.
    """
    check_settings(**locals())
    transform = normaliser(normalise, MOMENTS, invert=True)
    files = parquet("flwrlabs/femnist", "default", "train", root, cache)

    def decode(folder: Path) -> None:
        save_images(files, folder, "", "image", (28, 28, 1), "character", CLASSES)
        save_owners(files, folder, "writer_id")

    arrays = cached("femnist", files, decode, cache)
    rows = Ragged.by_owner(arrays["owner"], len(arrays["names"]))
    held = np.maximum(1, np.rint(test_share * rows.sizes)).astype(np.int64)
    train, test = [], []
    for writer in choose(rows.sizes - held >= least, clients, seed, "femnist"):
        # keyed by the writer's name, so that other writers do not change what is held out
        rng = stream(seed, "holdout", zlib.crc32(str(arrays["names"][writer]).encode()))
        shuffled = rng.permutation(rows[writer])
        test.append(np.sort(shuffled[: held[writer]]))
        train.append(np.sort(shuffled[held[writer] :]))
    kept = share(Ragged.of(train), local_share, stream(seed, "share"))
    return gather(arrays["x"], arrays["y"], kept, Ragged.of(test), CLASSES, transform, "femnist")
