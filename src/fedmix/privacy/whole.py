"""One client-level (ε, δ) for all that leaves clients: updates, means, a head's statistics.

Neighbours have one client replaced by another with as many samples. docs/privacy.md says what is
assumed.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from fedmix.core.errors import BadInput
from fedmix.core.validation import positive, whole
from fedmix.privacy.accounting import (
    DELTA,
    check_promise,
    dp_accounting,
    gaussian_epsilon,
    upwards,
)  # fmt: skip

CLOSE = 1.001  # of a noise multiplier that was asked for, to the least one


@dataclass(frozen=True)
class NoisySums:
    """Noised sums of clipped updates, one in each of `rounds`.

    `noise_multiplier` is the noise's deviation over the bound on an update's norm. In each round
    `chosen` of all `clients` are drawn uniformly, without replacement, and in secret. Where it is
    known who takes part, leave both out; `rounds` is then how often one client did, at most.

    Raises:
        BadInput: A value is out of range.
    """

    rounds: int
    noise_multiplier: float
    chosen: int = 1
    clients: int = 1

    def __post_init__(self) -> None:
        for name in ("rounds", "chosen", "clients"):
            whole(name, getattr(self, name))
        positive("noise_multiplier", self.noise_multiplier)
        if self.chosen > self.clients:
            raise BadInput(f"chosen={self.chosen} is more than clients={self.clients}; lower it")

    @property
    def mu(self) -> float:
        """μ if every client takes part in every round: one replaced moves each sum by 2C."""
        return 2 / self.noise_multiplier * math.sqrt(self.rounds)

    def epsilon(self, delta: float = DELTA, mu: float = 0.0) -> float:
        """Return ε of these sums together with normal noise of this μ.

        It is the smaller of two bounds: that of normal noise alone, which is exact where all take
        part, and that of Rényi divergences with sampling without replacement (Wang, Balle,
        Kasiviswanathan 2019).

        >>> round(NoisySums(1, 2.0).epsilon(0.30853754 - math.e * 0.06680720), 3)  # μ = 1
        1.0
        """
        check_promise(delta)
        known = gaussian_epsilon(math.hypot(self.mu, mu), delta)
        if self.chosen == self.clients:
            return known
        dp = dp_accounting()
        from dp_accounting.rdp import RdpAccountant

        accountant = RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
        one = dp.GaussianDpEvent(self.noise_multiplier / 2)
        sampled = dp.SampledWithoutReplacementDpEvent(self.clients, self.chosen, one)
        with np.errstate(all="ignore"):
            accountant.compose(sampled, self.rounds)
            if mu:
                accountant.compose(dp.GaussianDpEvent(1 / mu))
            secret = float(accountant.get_epsilon(delta))
        return min(known, secret) if secret >= 0 else known  # not if it is NaN


def least_multiplier(
    epsilon: float, rounds: int, chosen: int, clients: int, delta: float = DELTA, mu: float = 0.0
) -> float:
    """Return the least noise multiplier with which `NoisySums` have this ε, to 0.1 %.

    Arguments are those of `NoisySums` and its `epsilon`.

    Raises:
        BadInput: What is released besides has a larger ε already, or an argument is out of range.
    """
    positive("epsilon", epsilon)
    if mu and (alone := gaussian_epsilon(mu, delta)) >= epsilon:
        raise BadInput(
            f"epsilon={epsilon:g} cannot be reached: what clients send besides their updates has "
            f"ε = {upwards(alone)} alone; give it more noise"
        )

    def enough(multiplier: float) -> bool:
        return NoisySums(rounds, multiplier, chosen, clients).epsilon(delta, mu) <= epsilon

    high = 1.0
    while not enough(high):
        high *= 2
    low = high / 2
    while enough(low):
        low, high = low / 2, low
    while high > low * CLOSE:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


@dataclass(frozen=True)
class Whole:
    """What all that leaves clients guarantees together, for one client replaced.

    `parts` say what leaves, and the ε of each alone. If nothing is guaranteed, `epsilon` is
    infinite, `reason` says which part has no guarantee and why, and the object is false.
    """

    epsilon: float
    delta: float
    parts: dict[str, float] = field(default_factory=dict)
    reason: str = ""

    def __bool__(self) -> bool:
        return not self.reason

    def __str__(self) -> str:
        if self.reason:
            return f"None for all that leaves clients: {self.reason}."
        promise = f"({upwards(self.epsilon)}, {self.delta:g})-differential privacy"
        each = "; ".join(
            part if len(self.parts) == 1 else f"{part}, ε = {upwards(e)} alone"
            for part, e in self.parts.items()
        )
        return (
            f"{promise} of all that leaves clients but sizes and losses, for one client replaced: "
            f"{each}."
        )


def together(
    sums: NoisySums, others: dict[str, float], delta: float = DELTA, updates: str = ""
) -> Whole:
    """Return the guarantee of noised sums of updates and of other releases with normal noise.

    Args:
        sums: The sums of updates.
        others: μ of each of the others, by what it is.
        delta: δ.
        updates: What the sums are called; by default their rounds and clients.
    """
    epsilon = sums.epsilon(delta, math.hypot(*others.values()))
    parts = {updates or said(sums): sums.epsilon(delta) if others else epsilon}
    parts |= {what: gaussian_epsilon(mu, delta) for what, mu in others.items()}
    if epsilon == math.inf:
        return Whole(epsilon, delta, reason="the noise is too small to guarantee anything")
    return Whole(epsilon, delta, parts)


def said(sums: NoisySums) -> str:
    """Say what these sums are.

    >>> said(NoisySums(40, 4.0, 10, 100))
    'updates of 40 rounds, 10 of 100 clients in each'
    """
    rounds = "one round" if sums.rounds == 1 else f"{sums.rounds} rounds"
    if sums.clients == 1:
        return f"updates of {rounds} for one client, at most"
    return f"updates of {rounds}, {sums.chosen} of {sums.clients} clients in each"
