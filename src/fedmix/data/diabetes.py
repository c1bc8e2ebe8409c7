"""Diabetes progression (Efron et al. 2004), part of scikit-learn: a small regression task."""

import numpy as np

from fedmix.core.errors import BadInput
from fedmix.core.registry import DATA
from fedmix.core.rng import stream
from fedmix.core.validation import is_whole, shown
from fedmix.data.federated import FederatedData, HeldOut
from fedmix.data.partition import subset
from fedmix.data.ragged import Ragged
from fedmix.data.settings import check_settings


@DATA.add("diabetes", "442 patients, a regression; comes with scikit-learn")
def diabetes(clients: int = 10, *, test_share: float = 0.2, seed: int = 0) -> FederatedData:
    """442 patients in `clients` age groups of equal size (within one).

    A `test_share` of the patients, stratified by group, is held out for testing. Inputs and target
    have mean 0 and deviation 1 over the training samples. Raises BadInput for a wrong setting, or
    if scikit-learn is missing.

    >>> data = diabetes(4)
    >>> len(data.clients), data.input_shape, data.outputs
    (4, (10,), 1)
    """
    check_settings(test_share=test_share, seed=seed)
    try:
        from sklearn.datasets import load_diabetes
    except ImportError as error:
        raise BadInput("diabetes is in scikit-learn; run: pip install 'fedmix[data]'") from error
    bunch = load_diabetes(scaled=False)
    held = round(test_share * len(bunch.data))
    most = min(held, len(bunch.data) - held)  # every group has training and test samples
    if not is_whole(clients) or clients > most:
        raise BadInput(f"diabetes: {shown(clients)} clients; use 1..{most}")
    age = bunch.data[:, bunch.feature_names.index("age")]
    group = np.empty(len(age), np.int64)
    group[np.argsort(age, kind="stable")] = np.arange(len(age)) * clients // len(age)
    test = subset(group, held, stream(seed, "holdout"))
    train = np.setdiff1d(np.arange(len(age)), test)
    values = np.column_stack([bunch.data, bunch.target])
    values = ((values - values[train].mean(axis=0)) / values[train].std(axis=0)).astype(np.float32)
    rows, test_rows = (Ragged.by_owner(group[part], clients) for part in (train, test))
    x, y = values[:, :-1], values[:, -1:]
    return FederatedData(
        x[train], y[train], rows, HeldOut(x[test], y[test], test_rows), name="diabetes"
    )
