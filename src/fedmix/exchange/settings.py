"""The settings of a mean exchange: what clients release and how the server pools it."""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from fedmix.core.errors import BadInput
from fedmix.core.reprs import call_of
from fedmix.core.types import Array
from fedmix.core.validation import flag, is_number, number, one_of, shown, whole

GroupSize: TypeAlias = int | float | Literal["all"]
MOST_NOISE = 1e30  # means are float32, whose largest value is 3e38
# A group and the remainder that joins it are fewer than 1024, so that sums of 22 bits fit into 32.
MOST_SUMMED = 512


@dataclass(frozen=True)
class Exchange:
    """The settings of a mean exchange.

    `m` is M_k, the number of samples that are averaged into one mean: an integer, a fraction of n_k
    below 1, or "all". `split` groups samples at random or by class. Clients with fewer than
    `cutoff` samples send nothing. `noise` is the standard deviation σ of the Gaussian noise on
    every released input value. `clip` bounds the L2 norm of each sample's input and label vector
    together, and labels get the same noise as inputs; without it, as in the paper, labels get no
    noise and nothing is guaranteed. `label_clip` bounds the norm of label vectors separately, and
    `clip` then bounds inputs alone (docs/privacy.md). `label_noise` is the standard deviation of
    the noise on labels; it goes with `label_clip`. The server averages every `average` random
    entries of the pool into one. `source` replaces the pool by a client's own means or by random
    noise, the paper's controls; then nothing is sent. `exclude_own` keeps a client from drawing
    entries to which it contributed. With `wait`, clients whose data changed hold their new means
    back until that share of all clients has changed. With `secure`, the server of a federation gets
    sums over `average` clients or more and no client's mean; each client adds its own mean once.

    Raises:
        BadInput: A setting is outside its range, or two settings contradict each other.
    """

    m: GroupSize = "all"
    split: Literal["random", "class"] = "random"
    cutoff: int = 1
    noise: float = 0.0
    average: int = 1
    source: Literal["pool", "own", "noise"] = "pool"
    exclude_own: bool = False
    wait: float = 0.0
    clip: float | None = None
    label_clip: float | None = None
    label_noise: float | None = None
    secure: Literal["secagg+"] | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.m, str) and self.m == "all"):
            if not is_number(self.m) or not self.m > 0:
                raise BadInput(
                    f"exchange.m={shown(self.m)}: M_k must be at least 1, a fraction of n_k in (0, "
                    "1), or 'all'"
                )
            if isinstance(self.m, float | np.floating) and self.m >= 1:
                raise BadInput(
                    f"exchange.m={self.m}: a fraction of n_k must be below 1; for a number of "
                    "samples give an integer"
                )
        for name in ("cutoff", "average"):  # 1 excludes nobody, averages nothing
            whole(f"exchange.{name}", getattr(self, name))
        for name in ("noise", "label_noise"):
            deviation = getattr(self, name)
            if (deviation is not None or name == "noise") and not 0 <= number(
                f"exchange.{name}", deviation
            ) <= MOST_NOISE:
                raise BadInput(
                    f"exchange.{name}={deviation} is a deviation and must lie between 0 and "
                    f"{MOST_NOISE:g}"
                )
        for name in ("clip", "label_clip"):
            bound = getattr(self, name)
            if bound is not None and not 0 < number(f"exchange.{name}", bound) < math.inf:
                raise BadInput(
                    f"exchange.{name}={bound} is a bound on a norm and must be positive and finite"
                )
        if (self.label_clip is None) != (self.label_noise is None) or (
            self.label_clip is not None and self.clip is None
        ):
            raise BadInput(
                "exchange.label_clip and exchange.label_noise go together and with exchange.clip; "
                "give all three, or clip alone"
            )
        if not 0 <= number("exchange.wait", self.wait) <= 1:
            raise BadInput(
                f"exchange.wait={self.wait} is a share of clients and must lie in [0, 1]"
            )
        one_of("exchange.split", self.split, "random", "class")
        one_of("exchange.source", self.source, "pool", "own", "noise")
        flag("exchange.exclude_own", self.exclude_own)
        if self.source == "own" and self.exclude_own:
            raise BadInput(
                "exchange.source='own' uses a client's own means; it cannot go with exclude_own"
            )
        if self.secure is not None:
            self._check_secure()

    def _check_secure(self) -> None:
        rules = (
            (
                str(self.secure) == "secagg+",
                f"secure={shown(self.secure)} is unknown; leave it out or use 'secagg+'",
            ),
            (
                1 < self.average <= MOST_SUMMED,
                f"secure needs average between 2 and {MOST_SUMMED}: that many clients are summed",
            ),
            (self.m == "all", "secure needs m='all': each client adds one mean to a sum"),
            (
                self.clip is not None,
                "secure needs clip: values are summed as whole numbers, whose range has to be "
                "known",
            ),
            (
                self.source == "pool" and not self.exclude_own,
                "secure goes with source='pool' and without exclude_own only",
            ),
            (not self.wait, "secure does not go with wait: nobody sends twice"),
        )
        for holds, rule in rules:
            if not holds:
                raise BadInput(f"exchange.{rule}")

    def __repr__(self) -> str:
        return call_of(self)

    @property
    def noises(self) -> tuple[float, float]:
        """Standard deviations of the noise on inputs and on labels."""
        if self.label_noise is not None:
            return self.noise, self.label_noise
        return self.noise, 0.0 if self.clip is None else self.noise

    def check(self, sizes: Array) -> None:
        """Raise BadInput for settings that clients with these numbers of samples cannot meet."""
        senders = np.flatnonzero(sizes >= (self.cutoff if self.source != "own" else 1))
        if not len(senders):
            raise BadInput(
                f"exchange.cutoff={self.cutoff} leaves no client to send means: the largest has "
                f"{sizes.max()} samples; lower it"
            )
        samples = sizes[senders]
        short = np.flatnonzero(self.group_sizes(samples) > samples)
        if len(short):
            raise self._too_few(senders[short[0]], samples[short[0]])
        groups = int((samples // self.group_sizes(samples)).sum())
        if self.average > groups:
            raise BadInput(
                f"exchange.average={self.average} is more than the {groups} means that clients "
                "release; lower it"
            )

    def group_size(self, client: int, samples: int) -> int:
        """Return M_k of a client with this number of samples; raise BadInput if it has fewer."""
        size = int(self.group_sizes(np.array([samples]))[0])
        if size > samples:
            raise self._too_few(client, samples)
        return size

    def group_sizes(self, samples: Array) -> Array:
        """Return M_k of clients with these numbers of samples, even if they have fewer."""
        if self.m == "all":
            return samples
        if isinstance(self.m, float | np.floating):
            # 1e-9, since 0.29 * 100 is 28.999…
            return np.maximum(1, (self.m * samples + 1e-9).astype(np.int64))
        return np.full_like(samples, min(self.m, 2**62))  # int64, and more than any client has

    def smallest_group(self, samples: Array) -> int:
        """Return the number of samples in the smallest mean that clients release; 0 if none does.

        Args:
            samples: The number of samples of each client.
        """
        sizes = self.group_sizes(samples[samples >= self.cutoff])
        return int(sizes.min()) if len(sizes) else 0

    def _too_few(self, client: int, samples: int) -> BadInput:
        return BadInput(
            f"exchange.m={self.m} is more than the {samples} samples of client {client}; "
            f"lower it, use 'all', or set exchange.cutoff={self.m} so that small clients send "
            "nothing"
        )
