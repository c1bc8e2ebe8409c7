"""A client's last word on what leaves it: a file of its own that may ask for more than the server does, or refuse."""

import tomllib
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from fedmix.errors import BadInput
from fedmix.exchange import Exchange
from fedmix.files import read_within

LARGEST = 1 << 16


class Withheld(BadInput):
    """The client's policy lets no means out."""


@dataclass(frozen=True)
class Policy:
    """What a client demands of its own means, whatever the server asks for.

    `share_means = false` lets none out. `least_m` is the smallest M_k, `least_noise` the smallest deviation of the noise on
    every value. Where M_k would be more than the samples there are, nothing is sent.
    """

    share_means: bool = True
    least_m: int = 1
    least_noise: float = 0.0

    @staticmethod
    def load(path: Path) -> "Policy":
        """Read a TOML file."""
        text = read_within(path, LARGEST, "give a policy of a few lines")
        try:
            values = tomllib.loads(text.decode())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadInput(f"{path} is not valid TOML: {error}") from None
        known = [f.name for f in fields(Policy)]
        if unknown := [key for key in values if key not in known]:
            raise BadInput(f"{path}: {unknown[0]!r:.80} is not a setting of a policy; known are {', '.join(known)}")
        for name, kinds, rule in (
            ("share_means", (bool,), "true or false"),
            ("least_m", (int,), "a whole number from 1 on"),
            ("least_noise", (int, float), "a number from 0 on"),
        ):
            if name in values and not _fits(values[name], kinds):
                raise BadInput(f"{path}: {name}={values[name]!r:.80} must be {rule}")
        return Policy(**values)

    def applied(self, asked: Exchange, client: int, samples: int) -> Exchange:
        """What the client will do of what the server asks for."""
        if not self.share_means:
            raise Withheld(f"the policy of client {client} lets no means out")
        labels = asked.label_noise if asked.label_noise is None else max(asked.label_noise, self.least_noise)
        asked = replace(asked, noise=max(asked.noise, self.least_noise), label_noise=labels)
        if not samples < asked.cutoff and asked.group_size(client, samples) < self.least_m:
            if samples < self.least_m:
                raise Withheld(f"client {client} has fewer samples than the {self.least_m} that its policy wants in a mean")
            return replace(asked, m=self.least_m)
        return asked


def _fits(value: Any, kinds: tuple[type, ...]) -> bool:
    if type(value) not in kinds:
        return False
    return bool(value >= (1 if kinds == (int,) else 0)) and value < float("inf")
