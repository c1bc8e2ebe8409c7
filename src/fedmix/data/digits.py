"""Handwritten digits of 8x8 pixels, part of scikit-learn: a small task without a download."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from fedmix.core.errors import BadInput
from fedmix.core.registry import DATA
from fedmix.core.rng import stream
from fedmix.data.federated import FederatedData, HeldOut
from fedmix.data.partition import Partition, share, spread, subset
from fedmix.data.preset import Preset
from fedmix.data.settings import check_settings
from fedmix.data.transforms import Images

# Mean and deviation of all 1,797 images as they are stored here.
MOMENTS = ((0.3053,), (0.3759,))


@DATA.add(
    "digits",
    "1,797 8x8 images, 10 classes; comes with scikit-learn",
    pictures=True,
    preset=Preset("digits_cnn", 5, 5, 40, 0.9, 0.1, 0.05, 0.1, lr_decay=1.0),
)
def digits(
    clients: int = 20,
    *,
    partition: Partition = "classes",
    classes_per_client: int = 2,
    alpha: float | None = None,
    test_share: float = 0.2,
    local_share: float = 1.0,
    seed: int = 0,
) -> FederatedData:
    """1,797 handwritten digits; a stratified `test_share` of them is held out for testing.

    Other arguments are those of `cifar10`. Raises BadInput for a wrong setting, or if scikit-learn
    is missing.

    >>> data = digits(10)
    >>> data.x.shape, len(data.clients), data.input_shape
    ((1438, 8, 8, 1), 10, (1, 8, 8))
    """
    check_settings(**locals())
    found = find_spec("sklearn")  # its file is read, since to import it takes most of a second
    if found is None or found.origin is None:
        raise BadInput("digits are in scikit-learn; run: pip install 'fedmix[data]'")
    file = Path(found.origin).with_name("datasets") / "data" / "digits.csv.gz"
    rows = np.loadtxt(file, delimiter=",")  # 64 grey levels of 0..16, and the digit
    x = np.rint(rows[:, :-1] * 255 / 16).astype(np.uint8).reshape(-1, 8, 8, 1)
    y = rows[:, -1].astype(np.int64)
    test = subset(y, round(test_share * len(y)), stream(seed, "holdout"))
    train = np.setdiff1d(np.arange(len(y)), test)
    owned = spread(
        y[train], clients, partition, classes_per_client, alpha, stream(seed, "partition")
    )
    owned = share(owned, local_share, stream(seed, "share"))
    return FederatedData(
        x[train], y[train], owned, HeldOut(x[test], y[test]), 10, Images(*MOMENTS), name="digits"
    )
