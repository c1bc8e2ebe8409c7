"""A client's own limits on what leaves it: a file that is stricter than the server, or refuses."""

import math
from dataclasses import dataclass, fields, replace
from pathlib import Path

from fedmix.core.errors import BadInput
from fedmix.core.files import read_toml
from fedmix.exchange import Exchange
from fedmix.flower.ledger import Account
from fedmix.flower.refusals import Refused
from fedmix.flower.terms import Terms

LARGEST = 1 << 16


@dataclass(frozen=True)
class Policy:
    """What the owner of a client's data allows, whatever the server asks for.

    If M_k would be larger than the number of samples, no means are sent.

    Attributes:
        share_means: If False, no means leave the client.
        least_m: The smallest M_k.
        least_noise: The smallest deviation of the noise; on inputs only, unless samples are
            clipped.
        most_clip: Clip samples to at most this norm; the noise is then on labels too.
        most_releases: How often means may leave the client, counted in its ledger.
        share_weights: If False, the client does not train, so that no weights leave it.
        most_rounds: In how many rounds it trains, counted in its ledger.
        experiments: The experiments that it takes part in, by the id that its log names; None: all.
        fedmix: The versions of fedmix that it runs; None: any.
        ledger: File that counts what has left the client.
    """

    share_means: bool = True
    least_m: int = 1
    least_noise: float = 0.0
    most_clip: float | None = None
    most_releases: int | None = None
    share_weights: bool = True
    most_rounds: int | None = None
    experiments: list[str] | None = None
    fedmix: list[str] | None = None
    ledger: str | None = None

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
            ("most_releases", (int,), 0, "a whole number from 0 on"),
            ("share_weights", (bool,), 0, "true or false"),
            ("most_rounds", (int,), 0, "a whole number from 0 on"),
        ):
            if name in values and not (
                type(values[name]) in kinds and least <= values[name] < math.inf
            ):
                raise BadInput(f"{path}: {name}={values[name]!r:.80} must be {rule}")
        for name in ("experiments", "fedmix"):
            if name in values and not (
                isinstance(values[name], list) and all(isinstance(v, str) for v in values[name])
            ):
                raise BadInput(f"{path}: {name}={values[name]!r:.80} must be a list of texts")
        if "ledger" in values and not (isinstance(values["ledger"], str) and values["ledger"]):
            raise BadInput(f"{path}: ledger={values['ledger']!r:.80} must be the path of a file")
        capped = [name for name in ("most_releases", "most_rounds") if name in values]
        if capped and "ledger" not in values:
            raise BadInput(
                f"{path}: {capped[0]} needs a ledger, which keeps the count over restarts; give "
                "ledger = '/path/of/a/file.json'"
            )
        return Policy(**values)

    def account(self) -> Account:
        """Return the counts of what has left the client.

        Raises:
            BadInput: The ledger cannot be read.
        """
        return Account(Path(self.ledger) if self.ledger else None)

    def check_terms(self, terms: Terms) -> None:
        """Raise Refused if the client takes part in no such experiment, or not in this version."""
        if self.fedmix is not None and terms.fedmix not in self.fedmix:
            raise Refused("version", f"the policy does not accept fedmix {terms.fedmix}")
        if self.experiments is not None and terms.experiment not in self.experiments:
            raise Refused(
                "experiment", f"the policy does not accept the experiment {terms.experiment}"
            )

    def check_release(self, account: Account) -> None:
        """Raise Refused if no means may leave the client any more."""
        if self.most_releases is not None and account.releases >= self.most_releases:
            raise Refused(
                "releases",
                f"means have left this client {account.releases} times, and its policy allows "
                f"most_releases={self.most_releases}",
            )

    def check_weights(self, account: Account) -> None:
        """Raise Refused if no weights may leave the client, or none any more."""
        if not self.share_weights:
            raise Refused("weights")
        if self.most_rounds is not None and account.rounds >= self.most_rounds:
            raise Refused(
                "rounds",
                f"this client has trained in {account.rounds} rounds, and its policy allows "
                f"most_rounds={self.most_rounds}",
            )

    def applied(self, asked: Exchange, client: int, samples: int) -> Exchange:
        """Return the exchange that the client takes part in: what the server asked, made stricter.

        Args:
            asked: The exchange that the server asks for.
            client: Number of the client.
            samples: Its number of samples.

        Raises:
            Refused: The policy allows no release, or the client has fewer samples than `least_m`.
        """
        if not self.share_means:
            raise Refused("withheld", f"the policy of client {client} lets no means out")
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
                raise Refused(
                    "withheld",
                    f"client {client} has fewer samples than the {self.least_m} that its policy "
                    "wants in a mean",
                )
            return replace(asked, m=self.least_m)
        return asked

    def _clipped(self, asked: float | None) -> float | None:
        return asked if self.most_clip is None else min(asked or math.inf, self.most_clip)
