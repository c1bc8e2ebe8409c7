"""A client's last word on what leaves it: a file of its own that may ask for more than the server
does, or refuse.
"""

import math
from dataclasses import dataclass, fields, replace
from pathlib import Path

from fedmix.core.errors import BadInput
from fedmix.core.files import read_toml
from fedmix.exchange import Exchange

LARGEST = 1 << 16


class Withheld(BadInput):
    """The client's policy lets no means out."""


@dataclass(frozen=True)
class Policy:
    """What a client demands of its own means, whatever the server asks for.

    `share_means = false` lets none out. `least_m` is the smallest M_k, `least_noise` the smallest
    deviation of the noise: on input values only, unless samples are clipped. `most_clip` clips
    them, to this norm at most, and puts the noise on labels too. Where M_k would be more than the
    samples there are, nothing is sent.
    """

    share_means: bool = True
    least_m: int = 1
    least_noise: float = 0.0
    most_clip: float | None = None

    @staticmethod
    def load(path: Path) -> "Policy":
        """Read a TOML file."""
        values = read_toml(path, LARGEST, "give a policy of a few lines")
        known = [f.name for f in fields(Policy)]
        if unknown := [key for key in values if key not in known]:
            raise BadInput(
                f"{path}: {unknown[0]!r:.80} is not a setting of a policy; known are "
                f"{', '.join(known)}"
            )
        for name, kinds, least, rule in (
            ("share_means", (bool,), 0, "true or false"),
            ("least_m", (int,), 1, "a whole number from 1 on"),
            ("least_noise", (int, float), 0, "a number from 0 on"),
            ("most_clip", (int, float), math.ulp(0.0), "a number above 0"),
        ):
            if name in values and not (
                type(values[name]) in kinds and least <= values[name] < math.inf
            ):
                raise BadInput(f"{path}: {name}={values[name]!r:.80} must be {rule}")
        return Policy(**values)

    def applied(self, asked: Exchange, client: int, samples: int) -> Exchange:
        """What the client will do of what the server asks for."""
        if not self.share_means:
            raise Withheld(f"the policy of client {client} lets no means out")
        labels = (
            asked.label_noise
            if asked.label_noise is None
            else max(asked.label_noise, self.least_noise)
        )
        clip, label_clip = (
            self._clipped(asked.clip),
            asked.label_clip and self._clipped(asked.label_clip),
        )
        noise = max(asked.noise, self.least_noise)
        asked = replace(asked, noise=noise, label_noise=labels, clip=clip, label_clip=label_clip)
        if not samples < asked.cutoff and asked.group_size(client, samples) < self.least_m:
            if samples < self.least_m:
                raise Withheld(
                    f"client {client} has fewer samples than the {self.least_m} that its policy "
                    "wants in a mean"
                )
            return replace(asked, m=self.least_m)
        return asked

    def _clipped(self, asked: float | None) -> float | None:
        return asked if self.most_clip is None else min(asked or math.inf, self.most_clip)
