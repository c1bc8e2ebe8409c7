"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009), partitioned among clients."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedmix.core.registry import DATA
from fedmix.core.rng import stream
from fedmix.core.types import Array
from fedmix.data.cache import cached
from fedmix.data.federated import FederatedData, HeldOut
from fedmix.data.hub import parquet
from fedmix.data.images import Moments, Normalisation, normaliser, save_images
from fedmix.data.partition import Partition, share, spread, subset
from fedmix.data.preset import Preset
from fedmix.data.ragged import Ragged
from fedmix.data.settings import check_settings


@dataclass(frozen=True)
class _Source:
    name: str
    repo: str
    config: str
    label: str
    classes: int
    moments: Moments


# Mean and deviation per channel of the 50,000 training images; CIFAR-100's were computed here.
CIFAR10 = _Source(
    *("cifar10", "uoft-cs/cifar10", "plain_text", "label", 10),
    moments=((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
)
CIFAR100 = _Source(
    *("cifar100", "uoft-cs/cifar100", "cifar100", "fine_label", 100),
    moments=((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
)


# With momentum 0.9 the VGG diverges in round 1 from He's weights in every layer, with FedAvg too.
# From those in convolutions alone ("he-conv") it trains.
@DATA.add(
    "cifar10",
    "60,000 32x32 images, 10 classes; 130 MB from the hub",
    pictures=True,
    preset=Preset("vgg", 15, 2, 500, 0.7, 0.1, 0.05, 0.1, evaluate_every=5, initialise="he-conv"),
)
def cifar10(
    clients: int = 60,
    *,
    partition: Partition = "classes",
    classes_per_client: int = 2,
    alpha: float | None = None,
    samples_per_client: int | None = None,
    local_share: float = 1.0,
    augment: bool = True,
    normalise: Normalisation = "standard",
    seed: int = 0,
    root: str | Path | None = None,
    cache: str | Path | None = None,
) -> FederatedData:
    """CIFAR-10: by default 60 clients with two classes each.

    Args:
        clients: Number of clients.
        partition: "classes" (equal shards of a few classes), "random-classes", "shards" (dealt out
            at random), "dirichlet" (with `alpha`) or "iid".
        classes_per_client: Number of classes, or of shards, per client.
        alpha: Concentration of a Dirichlet partition.
        samples_per_client: Deal out only this many samples per client; None: all.
        local_share: Fraction of its samples that each client keeps.
        augment: Whether training images are cropped and flipped at random.
        normalise: "standard", or "unit" for pixels in [0, 1].
        seed: Seed of the partition.
        root: Folder with the hub's files (`fedmix.data.hub`).
        cache: Folder for decoded arrays (`fedmix.data.cache`).

    Raises:
        BadInput: A setting is wrong.
        DataError: A file is missing or damaged, or cannot be downloaded.
    """
    check_settings(**locals())
    deal = _Deal(
        clients, partition, classes_per_client, alpha, samples_per_client, local_share, seed
    )
    return _federated(CIFAR10, deal, augment, normalise, root, cache)


@DATA.add(
    "cifar100",
    "60,000 32x32 images, 100 classes; 130 MB from the hub",
    pictures=True,
    preset=Preset("vgg", 10, 10, 500, 0.4, 0.1, 0.1, 0.01, evaluate_every=5, initialise="he-conv"),
)
def cifar100(
    clients: int = 100,
    *,
    partition: Partition = "classes",
    classes_per_client: int = 20,
    alpha: float | None = None,
    samples_per_client: int | None = None,
    local_share: float = 1.0,
    augment: bool = True,
    normalise: Normalisation = "standard",
    seed: int = 0,
    root: str | Path | None = None,
    cache: str | Path | None = None,
) -> FederatedData:
    """CIFAR-100 with fine labels: by default 100 clients with twenty classes each.

    Arguments and errors are those of `cifar10`.
    """
    check_settings(**locals())
    deal = _Deal(
        clients, partition, classes_per_client, alpha, samples_per_client, local_share, seed
    )
    return _federated(CIFAR100, deal, augment, normalise, root, cache)


def _load(source: _Source, root: str | Path | None, cache: str | Path | None) -> dict[str, Array]:
    train, test = (
        parquet(source.repo, source.config, split, root, cache) for split in ("train", "test")
    )

    def decode(folder: Path) -> None:
        for prefix, files in (("train_", train), ("test_", test)):
            save_images(files, folder, prefix, "img", (32, 32, 3), source.label, source.classes)

    return cached(source.name, train + test, decode, cache)


@dataclass(frozen=True)
class _Deal:
    """How rows are dealt out: all or a stratified subset, and the share that each client keeps."""

    clients: int
    partition: Partition
    classes_per_client: int
    alpha: float | None
    samples_per_client: int | None
    local_share: float
    seed: int

    def rows(self, y: Array) -> Ragged:
        """Rows of each client, for labels `y`."""
        chosen = np.arange(len(y))
        if self.samples_per_client is not None:
            chosen = subset(y, self.clients * self.samples_per_client, stream(self.seed, "subset"))
        rng = stream(self.seed, "partition")
        dealt = spread(
            y[chosen], self.clients, self.partition, self.classes_per_client, self.alpha, rng
        )
        return share(
            Ragged(chosen[dealt.flat], dealt.offsets), self.local_share, stream(self.seed, "share")
        )


def _federated(
    source: _Source,
    deal: _Deal,
    augment: bool,
    normalise: str,
    root: str | Path | None,
    cache: str | Path | None,
) -> FederatedData:
    transform = normaliser(normalise, source.moments, pad=4 if augment else 0)
    arrays = _load(source, root, cache)
    train, test = (arrays["train_x"], arrays["train_y"]), (arrays["test_x"], arrays["test_y"])
    return FederatedData(
        *train, deal.rows(train[1]), HeldOut(*test), source.classes, transform, name=source.name
    )
