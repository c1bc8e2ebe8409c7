"""What the attacks are tried on: digits of ten clients, and an attacker who has learnt from their
test samples.
"""

import pytest

from fedmix import Exchange, data
from fedmix.data.federated import FederatedData
from fedmix.privacy.audit.population import Population
from fedmix.privacy.audit.scene import samples


@pytest.fixture(scope="package")
def digits() -> FederatedData:
    return data.digits(10)


@pytest.fixture(scope="package")
def population(digits: FederatedData) -> Population:
    x, _ = samples(digits, digits.held_out.x, digits.held_out.y, Exchange())
    return Population.learnt(x, digits.held_out.y, 10)
