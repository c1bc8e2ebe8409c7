"""A client's own limits on what leaves it: a file that is stricter than the server, or refuses."""

import math
from dataclasses import dataclass, fields, replace
from pathlib import Path

from fedmix.core.errors import BadInput
from fedmix.core.files import read_toml
from fedmix.exchange import Exchange

LARGEST = 1 << 16


class Withheld(BadInput):
    """The client's policy allows no release of means."""


@dataclass(frozen=True)
class Policy:
    """What a client demands of its own means, whatever the server asks for.

    If M_k would be larger than the number of samples, nothing is sent.

    Attributes:
        share_means: If False, no means leave the client.
        least_m: The smallest M_k.
        least_noise: The smallest deviation of the noise; on inputs only, unless samples are
            clipped.
        most_clip: Clip samples to at most this norm; the noise is then on labels too.
    """

    share_means: bool = True
    least_m: int = 1
    least_noise: float = 0.0
    most_clip: float | None = None

    @staticmethod
    def load(path: Path) -> "Policy":
        """Read a policy from a TOML file.

        Raises:
            BadInput: The file cannot be read, or a setting is unknown or wrong.
        """
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
        """Return the exchange that the client takes part in: what the server asked, made stricter.

        Args:
            asked: The exchange that the server asks for.
            client: Number of the client.
            samples: Its number of samples.

        Raises:
            Withheld: The policy allows no release, or the client has fewer samples than `least_m`.
        """
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
