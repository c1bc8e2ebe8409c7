"""(ε, δ) accounting of released means: their sensitivity to a sample or a client, against noise.

It covers the released means only; `whole.py` adds updates and what else leaves clients.
docs/privacy.md derives the sensitivities and states the assumptions.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from fedmix.core.errors import BadInput
from fedmix.core.validation import flag, instance, number, one_of, whole
from fedmix.data.federated import FederatedData
from fedmix.data.transforms import Images, OneHot, Plain
from fedmix.exchange.settings import Exchange

Neighbours = Literal["replace", "add-remove"]
Level = Literal["sample", "client"]
DELTA = 1e-5


@dataclass(frozen=True)
class Guarantee:
    """What an exchange guarantees to one sample, or to one client, over all `releases`.

    `mu` is the largest distance between the means of neighbouring data sets, in deviations of the
    noise: they are as hard to tell apart as two unit normals at that distance. If nothing is
    guaranteed, `epsilon` and `mu` are infinite, `reason` says why, and the object is false.
    """

    epsilon: float
    delta: float
    mu: float
    level: Level = "sample"
    neighbours: Neighbours = "replace"
    releases: int = 1
    reason: str = ""

    def __bool__(self) -> bool:
        return not self.reason

    def __str__(self) -> str:
        if self.reason:
            return f"None: {self.reason}."
        what = "replaced" if self.neighbours == "replace" else "added or removed"
        times = "one release" if self.releases == 1 else f"{self.releases} releases"
        promise = f"({upwards(self.epsilon)}, {self.delta:g})-differential privacy"
        return f"{promise} of the means for one {self.level} {what}, over {times}."


def upwards(epsilon: float, digits: int = 3) -> str:
    """Format ε with so many digits, rounded up, so that the printed value holds.

    >>> upwards(1.0001), upwards(25649.0), upwards(math.inf)
    ('1.01', '2.57e+04', 'inf')
    """
    if not 0 < epsilon < math.inf:
        return f"{epsilon:g}"
    step = 10.0 ** (math.floor(math.log10(epsilon)) + 1 - digits)
    return f"{math.ceil(epsilon / step - 1e-9) * step:.{digits}g}"


def sensitivity(
    clip: float, group: int, *, level: Level = "sample", nonnegative: bool = False
) -> float:
    """Largest L2 distance that all means of a release can move when one sample or client changes.

    A change is a replacement; for a client's only mean it also covers one sample more or less.

    Args:
        clip: Bound on the norm of each sample's vector.
        group: Smallest number of samples in a mean.
        level: Whether one "sample" or one "client" changes.
        nonnegative: Whether vectors are nonnegative: they are then at most √2·clip apart, others
            2·clip.

    Raises:
        BadInput: An argument is out of range.

    >>> sensitivity(3.0, 10)
    0.6
    """
    one_of("level", level, *get_args(Level))
    flag("nonnegative", nonnegative)
    apart = (math.sqrt(2) if nonnegative else 2) * _positive("clip", clip)
    return apart if level == "client" else apart / whole("group", group)


def guarantee(
    how: Exchange,
    group: int,
    delta: float = DELTA,
    *,
    releases: int = 1,
    neighbours: Neighbours = "replace",
    level: Level = "sample",
    nonnegative: bool = False,
) -> Guarantee:
    """Compute the guarantee of a number of releases with these settings.

    Args:
        how: Settings of the exchange.
        group: Smallest number of samples in a mean.
        delta: δ of the guarantee.
        releases: Number of releases.
        neighbours: Whether a sample (or client) is replaced, or added or removed.
        level: Whether one "sample" or one "client" is protected.
        nonnegative: Whether what is averaged is never negative; see `sensitivity`.

    Returns:
        The guarantee; where there is none, with the reason.

    Raises:
        BadInput: An argument is out of range, or dp-accounting is not installed.
    """
    _check(how, group, releases, nonnegative)
    check_promise(delta, neighbours, level)
    reason = why_none(how, neighbours, level)
    if not reason and neighbours == "add-remove" and group <= how.cutoff:
        reason = (
            f"without one of its samples a client of {group} would send nothing "
            "(exchange.cutoff), which everyone sees"
        )
    if reason:
        return Guarantee(math.inf, delta, math.inf, level, neighbours, releases, reason)
    moved = _moved(how, group, level, nonnegative)
    mu = math.sqrt(releases) * math.hypot(
        *[by / max(sigma, 1e-300) for by, sigma in zip(moved, how.noises, strict=False)]
    )
    epsilon = gaussian_epsilon(mu, delta)
    reason = "" if epsilon < math.inf else "the noise is too small to guarantee anything"
    return Guarantee(epsilon, delta, mu, level, neighbours, releases, reason)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return ε of two unit normals at the distance `mu` (Balle, Wang 2018); inf from 10⁶ on."""
    if mu > 1e6:
        return math.inf
    with np.errstate(divide="ignore"):  # log of a probability of 0
        return float(dp_accounting().get_epsilon_gaussian(1 / mu, delta))


def calibrated(
    how: Exchange,
    epsilon: float,
    group: int,
    delta: float = DELTA,
    *,
    releases: int = 1,
    nonnegative: bool = False,
) -> Exchange:
    """Return the settings with the least noise that gives (epsilon, delta) to a replaced sample.

    If labels have a clipping bound of their own, half of μ² is spent on them. Arguments are those
    of `guarantee`. Raises BadInput if no noise gives a guarantee.
    """
    _check(how, group, releases, nonnegative)
    check_promise(delta)
    _positive("epsilon", epsilon)
    if reason := why_none(
        replace(how, noise=1.0, label_noise=None if how.label_clip is None else 1.0)
    ):
        raise BadInput(f"no noise gives a guarantee: {reason}")
    moved = _moved(how, group, "sample", nonnegative)
    with np.errstate(divide="ignore"):
        unit = dp_accounting().get_sigma_gaussian(epsilon, delta) * math.sqrt(releases * len(moved))
    noise, *of_labels = [unit * by for by in moved]
    return replace(how, noise=noise, label_noise=of_labels[0] if of_labels else None)


def nonnegative(data: FederatedData) -> bool:
    """Whether what is averaged is never negative: pixels or one-hot characters, one-hot labels."""
    # arrays of other types may hold negative numbers
    pixels = type(data.transform) is Images and data.x.dtype == np.uint8
    return data.classes is not None and (pixels or type(data.transform) is OneHot)


def own_code(data: FederatedData) -> str:
    """Reason why a transform that is not fedmix's own may let one sample change another, or ""."""
    kind = type(data.transform)
    return (
        ""
        if kind in (Plain, Images, OneHot)
        else f"inputs are made by code of your own ({kind.__name__}), which is not known here"
    )


def why_none(how: Exchange, neighbours: Neighbours = "replace", level: Level = "sample") -> str:
    """Why these settings guarantee nothing; empty if they guarantee something."""
    if not how.noise:
        raw = ", and with exchange.m=1 they are raw samples" if how.m == 1 else ""
        return f"the means carry no noise (exchange.noise){raw}"
    if how.label_noise == 0:
        return "labels carry no noise (exchange.label_noise)"
    if how.clip is None:
        return (
            "samples are not clipped (exchange.clip), so that one of them can move a mean by "
            "any amount"
        )
    if how.split == "class" and how.m != "all":
        return (
            "groups are made by label (exchange.split), so that one label decides which samples "
            "are averaged"
        )
    if level == "client" and how.m != "all":
        return (
            "a client releases several means, and a guarantee for a whole client is given for "
            "exchange.m='all' only"
        )
    if level == "client" and neighbours != "replace":
        return (
            "the number of means tells how many clients sent one, so that a client can be "
            "replaced but not left out unseen"
        )
    if neighbours == "add-remove" and how.m != "all":
        return (
            "one sample more can change how many means there are, and which samples are "
            "averaged together"
        )
    return ""


def _moved(how: Exchange, group: int, level: Level, nonnegative: bool) -> list[float]:
    """Sensitivity of inputs and labels together, or of each."""
    return [
        sensitivity(c, group, level=level, nonnegative=nonnegative)
        for c in (how.clip, how.label_clip)
        if c is not None
    ]


def check_promise(
    delta: float, neighbours: Neighbours = "replace", level: Level = "sample"
) -> None:
    """Raise BadInput for a δ outside (0, 1) or an unknown `level` or `neighbours`.

    An unknown word must not pass for one that guarantees more.
    """
    if not 0 < number("delta", delta) < 1:
        raise BadInput(
            f"delta={delta} must lie between 0 and 1, and be well below 1 over the number of "
            "samples"
        )
    one_of("neighbours", neighbours, *get_args(Neighbours))
    one_of("level", level, *get_args(Level))


def _check(how: Exchange, group: int, releases: int, nonnegative: bool) -> None:
    instance("how", how, Exchange, "give an Exchange, such as Exchange(clip=1.0, noise=1.0)")
    whole("group", group)
    whole("releases", releases)
    flag("nonnegative", nonnegative)


def _positive(name: str, value: float) -> float:
    if not 0 < number(name, value) < math.inf:
        raise BadInput(f"{name}={value} must be positive and finite")
    return value


def dp_accounting() -> Any:
    """Return the package, imported when it is first used; raise BadInput if it is missing."""
    try:
        import dp_accounting
    except ImportError as error:
        raise BadInput(
            "ε is computed by dp-accounting; run: pip install 'fedmix[privacy]'"
        ) from error
    return dp_accounting
