"""Why a client refuses what it was asked: a word of a fixed list, and the server's sentence for it.

Only the word leaves the client, since an error's text may hold data.
"""

from flwr.app import ConfigRecord, RecordDict

from fedmix.core.errors import BadInput
from fedmix.flower.wire import OURS

LOG = "its own log says why"
REASONS = {
    "number": "its partition-id is no client's number; give it one: --node-config 'partition-id=0'",
    "policy": f"its policy cannot be read; {LOG}",
    "data": f"its data cannot be loaded; {LOG}",
    "step": f"its local update failed at step {{step}}; {LOG}",
    "failed": f"its app failed; {LOG}",
    "message": f"what it was sent is not what was agreed; {LOG}",
    "round": "it was asked for a round that is none of the experiment's",
    "withheld": "its policy lets no means out",
    "releases": "its policy lets no further means out",
    "weights": "its policy lets no weights out",
    "rounds": "its policy lets it train in no further round",
    "experiment": "its policy does not accept this experiment",
    "version": "its policy does not accept its version of fedmix",
    "ledger": f"its ledger cannot be used; {LOG}",
    "no means": "this app exchanges no means, so none are let out",
    "over": "means were asked for a round before the last one that it let some out for",
    "epoch": "means were asked for an epoch of its data that is no count",
    "sums only": "means are let out in sums only, for exchange.secure is set",
    "no sums": "a sum was asked for, and exchange.secure is not set",
    "cut-off": "it is below the cut-off and adds nothing to a sum",
    "summed": "its mean is in a sum already, and goes into no other",
    "other sum": "a sum was asked for with other settings than its own",
    "without": "a sum was asked for without some of its clients",
    "twice": "a sum was asked for with a client twice",
    "outside": "its mean was asked for outside a sum",
}
"""The server's sentences, by the word that leaves a client."""


class Refused(BadInput):
    """A client refuses what it was asked, for one of the REASONS; `text` is for its own log."""

    def __init__(self, reason: str, text: str = "") -> None:
        self.reason = reason
        super().__init__(text or REASONS[reason])


def refusal(reason: str, **step: int) -> RecordDict:
    """Return a reply that refuses what was asked, for one of the REASONS."""
    return RecordDict({OURS: ConfigRecord({"refused": reason, **step})})


def refused(content: RecordDict) -> str | None:
    """Return why a reply refuses, in the server's own words; None if it does not refuse."""
    about = content.get(OURS)
    if not isinstance(about, ConfigRecord) or "refused" not in about:
        return None
    step = about.get("step")
    reason = REASONS.get(str(about["refused"]), "for no reason that is known here")
    return reason.format(step=step if type(step) is int else "unknown")
